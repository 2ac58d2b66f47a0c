//! Explanations of small traces made by hand. `heg-sim` tests schedulers with injected causes.

use heg_sched::{Class, Finish, HoldReason, Lane, LayerKernel, Micros, RequestId, Segment};

use heg_spec::Seeded;

use super::{SlowCause, explain};
use crate::traced::{
    LaunchOutcome, RunTrace, TraceEvent, TracedCall, TracedHold, TracedLaunch, TracedRequest,
};

fn arrives(id: u64, class: Class, at: u64) -> TraceEvent {
    TraceEvent::Arrived(TracedRequest {
        id: RequestId(id),
        class,
        prompt_tokens: 16,
        output_tokens: 0,
        arrived: Micros(at),
        started: None,
        first_token: None,
        restarted: None,
        ended: None,
    })
}

fn ran(id: u64, lane: Lane, (start, end): (u64, u64), flash_tokens: u32) -> TraceEvent {
    TraceEvent::Launch(TracedLaunch {
        lane,
        call: TracedCall::Prefill {
            kernel: LayerKernel::Ffn,
            layer: 0,
            segment: Segment {
                position: 0,
                tokens: 16,
            },
        },
        requests: vec![RequestId(id)],
        class: Class::Reactive,
        start: Micros(start),
        end: Micros(end),
        outcome: LaunchOutcome::Done,
        flash_tokens,
        kept_tokens: 0,
        baked_tokens: 0,
    })
}

fn held(id: u64, why: HoldReason, (start, end): (u64, u64)) -> TraceEvent {
    TraceEvent::Held(TracedHold {
        request: RequestId(id),
        why,
        start: Micros(start),
        end: Micros(end),
    })
}

/// Request 2 waits for request 1, which waits for memory, then runs beside a proactive one; then 2 finds the NPU busy, reads
/// its cache back, and has its first token.
fn trace() -> RunTrace {
    let mut trace = RunTrace::default();
    let mut add = |event| trace.add(event);
    add(arrives(0, Class::Proactive, 0));
    add(arrives(1, Class::Reactive, 0));
    add(arrives(2, Class::Reactive, 10_000));
    add(held(1, HoldReason::Memory, (0, 40_000)));
    add(held(2, HoldReason::Prompt(RequestId(1)), (10_000, 60_000)));
    add(ran(1, Lane::Npu, (40_000, 60_000), 0));
    add(ran(0, Lane::Npu, (60_000, 65_000), 0));
    add(held(2, HoldReason::Lane(Lane::Npu), (60_000, 65_000)));
    add(ran(2, Lane::Npu, (65_000, 80_000), 7));
    add(ran(2, Lane::Npu, (80_000, 83_000), 0));
    add(TraceEvent::FirstToken(RequestId(2), Micros(83_000)));
    let mut ended = trace.requests[&RequestId(2)];
    ended.output_tokens = 1;
    ended.ended = Some((Micros(83_000), Finish::Complete));
    trace.add(TraceEvent::Ended(ended));
    trace
}

#[test]
fn time_is_traced_back_through_those_that_were_waited_for() {
    let explanation = explain(&trace(), RequestId(2)).unwrap();
    let causes: Vec<(SlowCause, u64)> = explanation
        .first_token
        .shares
        .iter()
        .map(|share| (share.cause, share.time.0))
        .collect();
    let other = RequestId(1);
    assert_eq!(
        causes,
        [
            (SlowCause::Memory, 30_000),
            (SlowCause::Prompt(other), 20_000),
            (SlowCause::FlashRead, 12_000),
            (SlowCause::OwnPrompt, 6_000),
            (SlowCause::Kernel(RequestId(0), Lane::Npu), 5_000),
        ]
    );
    insta::assert_snapshot!(format!("{explanation}\n\n{}", explanation.picture(73)));
    insta::assert_snapshot!(serde_json::to_string_pretty(&explanation.to_json()).unwrap());
}

#[test]
fn what_came_from_kept_state_or_the_bundle_is_said_with_its_time() {
    for (baked, place) in [(0, "kept state"), (4096, "a state of the bundle")] {
        told_of_a_read(baked, place);
    }
}

fn told_of_a_read(baked_tokens: u32, place: &str) {
    let mut trace = RunTrace::default();
    trace.add(arrives(1, Class::Reactive, 0));
    for (times, kept) in [((0, 34_000), 4096), ((34_000, 37_000), 0)] {
        let TraceEvent::Launch(launch) = ran(1, Lane::Cpu, times, 0) else {
            unreachable!("it is a launch");
        };
        trace.add(TraceEvent::Launch(TracedLaunch {
            kept_tokens: kept,
            baked_tokens: baked_tokens.min(kept),
            ..launch
        }));
    }
    trace.add(TraceEvent::FirstToken(RequestId(1), Micros(37_000)));
    let explanation = explain(&trace, RequestId(1)).unwrap();
    let first = explanation.first_token.main().unwrap();
    assert_eq!(
        (first.cause, first.time),
        (SlowCause::KeptRead, Micros(31_000))
    );
    let sentence = explanation.to_string();
    let said = format!("31.0 ms (83%) reading 4096 tokens of its prompt from {place}");
    assert!(sentence.contains(&said), "{sentence}");
}

/// An untrusted trace may have any times. Percentages of these did not fit 64 bits.
#[test]
fn the_longest_times_that_a_file_can_have_are_explained() {
    let end = u64::MAX;
    let mut trace = RunTrace::default();
    trace.add(arrives(1, Class::Reactive, 0));
    trace.add(held(1, HoldReason::Memory, (0, end / 4)));
    trace.add(ran(1, Lane::Npu, (end / 4, end), 0));
    trace.add(TraceEvent::FirstToken(RequestId(1), Micros(end)));
    let mut ended = trace.requests[&RequestId(1)];
    ended.ended = Some((Micros(end), Finish::Complete));
    trace.add(TraceEvent::Ended(ended));
    let explanation = explain(&trace, RequestId(1)).unwrap();
    let (sentence, picture) = (explanation.to_string(), explanation.picture(8));
    for said in ["(75%)", "(24%)"] {
        assert!(sentence.contains(said), "{sentence}");
    }
    let rows: Vec<&str> = picture.lines().skip(1).collect();
    assert!(
        rows[0].starts_with(" ··██████ ") && rows[0].contains(" 75% "),
        "{picture}"
    );
    assert!(
        rows[1].starts_with(" ██······ ") && rows[1].contains(" 24% "),
        "{picture}"
    );
}

#[test]
fn intervals_leave_no_gap() {
    let trace = trace();
    for id in [0, 1, 2] {
        let explanation = explain(&trace, RequestId(id)).unwrap();
        let stretch = &explanation.first_token;
        let mut at = stretch.start;
        for interval in &stretch.intervals {
            assert_eq!(interval.start, at);
            at = interval.end;
        }
        assert_eq!(at, stretch.end);
        let all: u64 = stretch.shares.iter().map(|share| share.time.0).sum();
        assert_eq!(all, stretch.time().0);
    }
}

#[test]
fn what_waits_for_itself_has_an_explanation_too() {
    let mut trace = RunTrace::default();
    for id in [1, 2] {
        trace.add(arrives(id, Class::Reactive, 0));
        trace.add(held(id, HoldReason::Prompt(RequestId(3 - id)), (0, 50)));
    }
    let explanation = explain(&trace, RequestId(1)).unwrap();
    let main = explanation.first_token.main().unwrap();
    assert_eq!(main.cause, SlowCause::Prompt(RequestId(1)));
    assert_eq!(main.time, Micros(50));
}

#[test]
fn an_unknown_request_is_refused_with_those_that_there_are() {
    let error = explain(&trace(), RequestId(9)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no request 9 arrives in this trace; it has 3 requests, 0 to 2"
    );
}

/// A fuzzer's starting point: a trace with some of everything, and bytes of it changed.
#[test]
fn whatever_a_trace_claims_all_time_is_explained() {
    let seed = include_bytes!("../../../../tests/fuzz/seeds/trace/run.json");
    let mut random = Seeded::new(7);
    let mut read = 0;
    for _ in 0..20_000 {
        let mut bytes = seed.to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] = b"0123456789"[random.below(10)];
        }
        let Ok(trace) = RunTrace::read(bytes.as_slice()) else {
            continue;
        };
        read += 1;
        for request in trace.requests() {
            let explanation = explain(&trace, request.id).unwrap();
            let stretch = &explanation.first_token;
            let all: u64 = stretch.shares.iter().map(|share| share.time.0).sum();
            assert_eq!(all, stretch.time().0);
            let _ = (
                explanation.to_string(),
                explanation.picture(7),
                explanation.to_json(),
            );
        }
    }
    assert!(read > 1000, "{read}");
}
