//! Tests of kernels that fail, hang, or end late.

use heg_runtime::engine::{Fault, Victim};
use heg_sched::{Finish, RequestId};

use crate::world::{World, policies};

/// Returns whether to test this fault under this policy. A hung kernel takes seconds of waiting, so each pipeline is
/// tested with it under one policy; with `HEG_FULL=1` under all.
fn may_happen(fault: Fault, policy: &str) -> bool {
    let hangs = matches!(fault, Fault::Hang | Fault::Late);
    let stands_for_others = [
        "agent-xpu",
        "agent-xpu-one-device",
        "igpu-continuous-batching",
    ];
    !hangs || stands_for_others.contains(&policy) || std::env::var_os("HEG_FULL").is_some()
}

#[test]
fn faults_that_pass_change_no_token_under_any_policy() {
    for (policy, soc) in policies() {
        let world = World::impatient(policy, soc);
        let mut happened = 0;
        for (fault, after) in [
            (Fault::Fail, 0),
            (Fault::Fail, 40),
            (Fault::Hang, 5),
            (Fault::Late, 3),
            (Fault::Late, 60),
            (Fault::Unreserved, 1),
        ] {
            if may_happen(fault, policy) {
                world.expect(fault, Victim::Anybody, after, 1);
                world.crowd_is_served();
                happened += 1;
            }
        }
        assert_eq!(world.plan.happened(), happened, "{policy}");
        world.is_empty_again();
    }
}

#[test]
fn a_culprit_fails_alone_under_every_policy() {
    for (policy, soc) in policies() {
        for (fault, after) in [
            (Fault::Fail, 0),
            // The request decodes in a batch by then.
            (Fault::Fail, 60),
            (Fault::Hang, 0),
            (Fault::Unreserved, 0),
        ] {
            if !may_happen(fault, policy) {
                continue;
            }
            let world = World::impatient(policy, soc);
            let culprit = 4;
            let victim = Victim::Request(RequestId(culprit));
            world.expect(fault, victim, after, u64::MAX);
            for (at, ending) in world.crowd().into_iter().enumerate() {
                let what = format!("{policy}, {fault:?} after {after}, prompt {at}: {ending:?}");
                if at as u64 == culprit {
                    assert_eq!(ending.finish, Finish::Failed, "{what}");
                    assert!(ending.error.is_some(), "{what}");
                } else {
                    assert_eq!(ending.finish, Finish::Complete, "{what}");
                }
            }
            world.is_empty_again();
        }
    }
}
