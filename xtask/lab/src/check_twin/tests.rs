//! A run whose costs are known: the simulator's own, which a replay has to find again.

use super::*;
use heg_sched::{Action, Event, LayerKernel, Observer};
use heg_sim::{AnalyticCosts, Dimensions, Machine};
use heg_workload::{LaunchOutcome, TraceRecorder, TracedCall, TracedLaunch};
use std::sync::{Arc, Mutex};

/// A trace in memory.
#[derive(Default, Clone)]
struct Recording(Arc<Mutex<(TraceRecorder, RunTrace)>>);

impl Observer for Recording {
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        let mut held = self.0.lock().unwrap();
        let (recorder, trace) = &mut *held;
        recorder.stepped(now, event, actions, |event| trace.add(event));
    }
}

fn args(rates: (f64, f64)) -> Args {
    Args {
        trace: None,
        model: String::new(),
        bundle: None,
        soc: String::new(),
        policy: None,
        rates,
        seconds: 120,
        seed: 3,
        latency_error_max: 10.0,
        occupancy_error_max: 5.0,
        keep: None,
        json: None,
    }
}

/// A simulated run, recorded as the engine's is.
fn simulated(slower_later: bool) -> RunTrace {
    let mut costs = AnalyticCosts::core_ultra_5_125h(Dimensions::llama_3b());
    // Lines are what the twin fits; a CPU alone has no static shapes.
    costs.devices = [None, None, costs.devices[2]];
    let recording = Recording::default();
    let trace = drawn(&args((2.0, 3.0)));
    let policy = shipped::policy("agent-xpu-one-device").unwrap();
    let facts = MachineFacts {
        lanes: MachineLanes::of(|class| class == DeviceClass::Cpu),
        flash: false,
        kernels_hang: false,
    };
    let contender = Contender::from(for_machine(policy, &facts).unwrap());
    let scheduler = contender.scheduler(&costs);
    let mut observed = heg_sched::Observed::new(scheduler, recording.clone());
    simulate(&mut observed, &costs, &Machine::default(), &trace).unwrap();
    let held = recording.0.lock().unwrap();
    let recorded = held.1.clone();
    match slower_later {
        false => recorded,
        true => slowed(&recorded),
    }
}

/// The run with the answers of its second half later than they were.
fn slowed(recorded: &RunTrace) -> RunTrace {
    let mut slowed = RunTrace::default();
    let middle = recorded.requests().map(|it| it.arrived).max().unwrap().0 / 2;
    for request in recorded.requests() {
        slowed.add(heg_workload::TraceEvent::Arrived(*request));
        let (ended, finish) = request.ended.unwrap();
        let late = Micros(ended.0 + ended.since(request.arrived).0);
        let ended = if request.arrived.0 >= middle {
            late
        } else {
            ended
        };
        slowed.add(heg_workload::TraceEvent::Ended(TracedRequest {
            ended: Some((ended, finish)),
            ..*request
        }));
    }
    for launch in recorded.launches() {
        slowed.add(heg_workload::TraceEvent::Launch(launch.clone()));
    }
    slowed
}

fn twin(recorded: &RunTrace) -> Twin {
    let policy = |_| Ok(shipped::policy("agent-xpu-one-device").unwrap());
    Twin::of(recorded, policy).unwrap()
}

#[test]
fn a_replay_finds_the_run_again() {
    let twin = twin(&simulated(false));
    assert!(twin.requests.len() >= 3, "{}", twin.table());
    assert!(twin.latency_error_percent < 5.0, "{}", twin.table());
    assert_eq!(twin.too_far(10.0, 5.0), Vec::<String>::new());
    assert_eq!(twin.lanes.len(), 1);
}

#[test]
fn a_run_that_took_twice_as_long_is_found_out() {
    let twin = twin(&simulated(true));
    let far = twin.too_far(10.0, 5.0);
    assert!(
        far[0].starts_with("the mean error of latency is"),
        "{far:?}"
    );
}

/// The run with launches that take half as long again in every other second, of a machine that has nothing else to do.
#[test]
fn a_machine_whose_speed_changes_is_replayed_at_each_speed() {
    let mut recorded = RunTrace::default();
    let mut at = 0;
    for id in 0..40 {
        let us = if id % 2 == 0 { 1000 } else { 1500 };
        let id = heg_sched::RequestId(id);
        let request = TracedRequest {
            id,
            class: Class::Reactive,
            prompt_tokens: 1,
            output_tokens: 101,
            arrived: Micros(at),
            started: Some(Micros(at)),
            first_token: Some(Micros(at + 3 * us)),
            restarted: None,
            ended: Some((Micros(at + 103 * us), Finish::Complete)),
        };
        recorded.add(heg_workload::TraceEvent::Arrived(request));
        recorded.add(heg_workload::TraceEvent::Ended(request));
        let mut launch = |call| {
            recorded.add(heg_workload::TraceEvent::Launch(TracedLaunch {
                lane: Lane::Cpu,
                call,
                requests: vec![id],
                class: Class::Reactive,
                start: Micros(at),
                end: Micros(at + us),
                outcome: LaunchOutcome::Done,
                flash_tokens: 0,
                kept_tokens: 0,
                baked_tokens: 0,
            }));
            at += us;
        };
        let segment = heg_sched::Segment {
            position: 0,
            tokens: 1,
        };
        for kernel in [LayerKernel::Qkv, LayerKernel::Mha, LayerKernel::Ffn] {
            launch(TracedCall::Prefill {
                kernel,
                layer: 0,
                segment,
            });
        }
        for _ in 0..100 {
            launch(TracedCall::Decode {
                first_layer: 0,
                end_layer: 1,
                fused: false,
            });
        }
        at = (at / 1_000_000 + 1) * 1_000_000;
    }
    let twin = twin(&recorded);
    assert!(twin.latency_error_percent < 4.0, "{}", twin.table());
    assert!(twin.mean_speed_error_percent > 15.0, "{}", twin.table());
}

#[test]
fn rates_are_two_numbers() {
    assert_eq!(rates("3+6.5"), Ok((3.0, 6.5)));
    for wrong in ["3", "3+", "a+b", "-1+2", "1+1e9"] {
        assert!(rates(wrong).is_err(), "{wrong}");
    }
}
