//! Reads arbitrary bytes as the trace of a run, and explains its requests.
//!
//! Every moment of a request has one cause, whatever the trace claims.

use heg_workload::{RunTrace, Stretch, explain};

pub(crate) fn run(input: &[u8]) {
    let Ok(trace) = RunTrace::read(input) else {
        return;
    };
    for request in trace.requests().take(8) {
        let explanation = explain(&trace, request.id).expect("it is in the trace");
        whole(&explanation.first_token);
        explanation.answer.iter().for_each(whole);
        let _ = (
            explanation.picture(40),
            explanation.to_string(),
            explanation.to_json(),
        );
    }
}

fn whole(stretch: &Stretch) {
    let mut at = stretch.start;
    for interval in &stretch.intervals {
        assert_eq!(interval.start, at);
        at = interval.end;
    }
    assert!(at == stretch.end || stretch.end < stretch.start);
}
