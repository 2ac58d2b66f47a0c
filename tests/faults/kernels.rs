//! Kernels that fail, hang, or end late.

use heg_runtime::engine::{Fault, Victim};
use heg_sched::{Finish, RequestId};

use crate::world::{World, policies};

#[test]
fn faults_that_pass_change_no_token_under_any_policy() {
    for (policy, soc) in policies() {
        let world = World::impatient(policy, soc);
        for (fault, after) in [
            (Fault::Fail, 0),
            (Fault::Fail, 40),
            (Fault::Hang, 5),
            (Fault::Late, 3),
            (Fault::Late, 60),
            (Fault::Unreserved, 1),
        ] {
            world.expect(fault, Victim::Anybody, after, 1);
            world.crowd_is_served();
        }
        assert_eq!(world.plan.happened(), 6, "{policy}");
        world.is_empty_again();
    }
}

#[test]
fn a_culprit_fails_alone_under_every_policy() {
    for (policy, soc) in policies() {
        for (fault, after) in [
            (Fault::Fail, 0),
            // It is decoding in a batch by then.
            (Fault::Fail, 60),
            (Fault::Hang, 0),
            (Fault::Unreserved, 0),
        ] {
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
