//! Faults during the verification of drafts: every served request gets the same tokens as without drafts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use heg_runtime::engine::{Fault, Health, Speculation, Victim};
use heg_sched::{Action, Event, Finish, Lane, Micros, Observer, RequestId, Work};

use crate::world::{ONE_LANE, TWO_LANES, World, impatient};

/// Policies that verify drafts, each with a machine that has its lanes.
const POLICIES: [(&str, &str); 2] = [("agent-xpu-one-device", ONE_LANE), ("agent-xpu", TWO_LANES)];

#[test]
fn faults_that_pass_amid_verifications_change_no_token() {
    for (policy, soc) in POLICIES {
        for speculation in [Speculation::Chain, Speculation::Tree] {
            let world = World::drafting(policy, soc, speculation);
            let faults = [
                (Fault::Fail, 60),
                (Fault::OutOfMemory, 100),
                (Fault::OutOfMemory, 160),
                (Fault::Hang, 120),
                (Fault::Late, 140),
                (Fault::Unreserved, 2),
            ];
            for (fault, after) in faults {
                world.expect(fault, Victim::Anybody, after, 1);
                world.crowd_is_served();
            }
            assert_eq!(world.plan.happened(), 6, "{policy}");
            let status = world.engine.status().unwrap();
            assert!(status.accepted_tokens > 0, "{policy}: {status:?}");
            assert!(
                status.accepted_tokens < status.drafted_tokens,
                "{policy}: {status:?}"
            );
            world.is_empty_again();
        }
    }
}

/// Runs a request alone, once for each of its kernels, which fails or runs out of memory.
#[test]
fn each_kernel_of_a_drafted_answer_may_fail() {
    let (policy, soc) = POLICIES[0];
    let world = World::drafting(policy, soc, Speculation::Tree);
    let mut kernels = 0;
    for after in 0.. {
        let fault = match after % 2 {
            0 => Fault::Fail,
            _ => Fault::OutOfMemory,
        };
        world.expect(fault, Victim::Anybody, after, 1);
        let answer = world.submit(0);
        let flow = answer.flow;
        let (tokens, ending) = answer.wait();
        assert_eq!(ending.finish, Finish::Complete, "{fault:?} after {after}");
        assert_eq!(
            tokens, world.references[0].answer,
            "{fault:?} after {after}"
        );
        world.engine.end_flow(flow.unwrap());
        if world.plan.happened() == after {
            break;
        }
        kernels = after + 1;
    }
    let status = world.engine.status().unwrap();
    println!(
        "{kernels} kernels, {} tokens accepted",
        status.accepted_tokens
    );
    // Its prompt has three for each of six layers, and the head.
    assert!(kernels > 2 * 19, "{kernels}");
    assert!(status.accepted_tokens > 0, "{status:?}");
    world.plan.clear();
    world.is_empty_again();
}

#[test]
fn one_that_cannot_be_verified_fails_alone() {
    for (policy, soc) in POLICIES {
        // The request decodes in a batch by then.
        for fault in [Fault::Fail, Fault::OutOfMemory] {
            let world = World::drafting(policy, soc, Speculation::Chain);
            let culprit = 4;
            let victim = Victim::Request(RequestId(culprit));
            world.expect(fault, victim, 60, u64::MAX);
            for (at, ending) in world.crowd().into_iter().enumerate() {
                let expected = match at as u64 == culprit {
                    true => Finish::Failed,
                    false => Finish::Complete,
                };
                let what = format!("{policy}, {fault:?}, prompt {at}: {ending:?}");
                assert_eq!(ending.finish, expected, "{what}");
            }
            world.is_empty_again();
        }
    }
}

#[test]
fn the_loss_of_the_npu_changes_no_token_of_drafted_answers() {
    for after in [4, 40, 80] {
        let world = World::drafting("agent-xpu", TWO_LANES, Speculation::Tree);
        world.expect(Fault::Panic, Victim::Lane(Lane::Npu), after, 1);
        world.crowd_is_served();
        world.crowd_is_served();
        world.is_empty_again();
        assert!(matches!(world.engine.health(), Health::Degraded(_)));
    }
}

/// No request gets a wrong token, or waits for ever.
#[test]
fn the_loss_of_the_lane_that_verifies_ends_everybody() {
    let mut verified = 0;
    for (policy, soc) in POLICIES {
        let lane = if soc == ONE_LANE {
            Lane::Cpu
        } else {
            Lane::Igpu
        };
        for after in [60, 100, 140] {
            let world = World::drafting(policy, soc, Speculation::Tree);
            world.expect(Fault::Panic, Victim::Lane(lane), after, 1);
            for ending in world.crowd() {
                let ended = [Finish::Failed, Finish::Complete].contains(&ending.finish);
                assert!(ended, "{policy}: {ending:?}");
            }
            verified += world.engine.status().unwrap().drafted_tokens;
            world.is_empty_again();
        }
    }
    assert!(verified > 0);
}

/// Counts verifications on the NPU.
#[derive(Clone, Default)]
struct Verifications(Arc<AtomicUsize>);

impl Observer for Verifications {
    fn stepped(&mut self, _: Micros, _: &Event, actions: &[Action]) {
        let verifies = |action: &&Action| {
            let Action::Launch { lane, work, .. } = action else {
                return false;
            };
            (*lane, matches!(work, Work::Decode(_))) == (Lane::Npu, true)
        };
        let count = actions.iter().filter(verifies).count();
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// The NPU verifies drafts while the other lane decodes, even if it fails, hangs or is lost.
#[test]
fn two_lanes_that_decode_change_no_token() {
    let mut policy = impatient("agent-xpu");
    policy.decode.second_lane = true;
    let verifications = Verifications::default();
    let observers: Vec<Box<dyn Observer>> = vec![Box::new(verifications.clone())];
    let world = World::drafting_under(policy, TWO_LANES, Speculation::Tree, observers);
    for _ in 0..10 {
        world.crowd_is_served();
    }
    let count = verifications.0.load(Ordering::Relaxed);
    println!("{count} verifications on the NPU");
    assert!(count > 0);
    let npu = Victim::Lane(Lane::Npu);
    for (fault, after) in [
        (Fault::Fail, 300),
        (Fault::OutOfMemory, 310),
        (Fault::Late, 320),
        (Fault::Hang, 330),
        (Fault::Panic, 340),
    ] {
        world.expect(fault, npu, after, 1);
        for _ in 0..3 {
            world.crowd_is_served();
        }
    }
    assert!(world.plan.happened() > 3);
    world.is_empty_again();
}
