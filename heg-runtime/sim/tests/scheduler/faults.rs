//! Faults are events like others: after them the remaining requests finish.

use heg_sched::{Finish, Lane, Micros};
use heg_sim::{DevicePeak, Faults, Interruption, LaunchFault};

use crate::scenario::Scenario;

/// Runs worlds without cancellations and deadlines, with these faults; returns the numbers of requests by their end.
fn ends(faults: &Faults) -> (usize, usize) {
    let (mut complete, mut other) = (0, 0);
    for seed in (0..400).step_by(2) {
        let mut scenario = Scenario::of(seed);
        // Every lane is present; the CPU steps in while the iGPU is away.
        for device in &mut scenario.costs.devices {
            device.get_or_insert(DevicePeak {
                flops_per_sec: 1e10,
                bytes_per_sec: 2e9,
                launch_us: 5.0,
            });
        }
        scenario.policy.limits.requests_max = 64;
        scenario.policy.limits.kv_mib = 64;
        scenario.costs.context_tokens = 4096;
        for request in &mut scenario.trace.requests {
            (request.deadline_after, request.cancel_after) = (None, None);
        }
        scenario.machine.faults = faults.clone();
        let verdict = scenario.run();
        assert_eq!(verdict.violations, [], "seed {seed}");
        for request in verdict.run.unwrap().requests {
            match request.finish {
                Some(Finish::Complete) => complete += 1,
                _ => other += 1,
            }
        }
    }
    (complete, other)
}

#[test]
fn a_failed_a_hung_and_a_starved_launch_are_tried_again() {
    for fault in [
        LaunchFault::Fail,
        LaunchFault::Hang,
        LaunchFault::OutOfMemory,
    ] {
        let launches = [(3, fault), (17, fault)].into_iter().collect();
        let faults = Faults {
            launches,
            ..Faults::default()
        };
        let (complete, other) = ends(&faults);
        assert!(
            complete > 500 && other == 0,
            "{fault:?}: {complete} and {other}"
        );
    }
}

#[test]
fn a_request_that_always_fails_ends_and_the_others_go_on() {
    let faults = Faults {
        launches: (0..3).map(|launch| (launch, LaunchFault::Fail)).collect(),
        ..Faults::default()
    };
    let (complete, other) = ends(&faults);
    assert!(complete > 500 && other > 10, "{complete} and {other}");
}

#[test]
fn work_of_a_lost_device_is_done_elsewhere() {
    for lane in [Lane::Npu, Lane::Igpu] {
        for back in [None, Some(Micros(9000))] {
            let lost = Micros(3000);
            let faults = Faults {
                interruptions: vec![Interruption { lane, lost, back }],
                ..Faults::default()
            };
            let (complete, other) = ends(&faults);
            assert!(
                complete > 500 && other == 0,
                "{lane:?}: {complete} and {other}"
            );
        }
    }
}
