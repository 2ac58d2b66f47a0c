//! Exports a simulation as a trace in virtual time.

use serde_json::{Value, json};

use super::engine::Run;
use heg_sched::RequestId;
use heg_workload::trace_event::{Journey, LaunchSlice, launch, preamble, request};

/// The run as JSON in the Trace Event Format, with times in µs of virtual time. The run must have kept its timeline.
pub fn chrome_trace(run: &Run) -> Value {
    let mut events = preamble();
    let class = |id: RequestId| run.requests.get(id.0 as usize).map(|r| r.class);
    events.extend(run.timeline.iter().map(|slice| {
        let slice = LaunchSlice {
            lane: slice.lane,
            work: &slice.work,
            start: slice.start,
            end: slice.end,
        };
        launch(&slice, class)
    }));
    for (number, record) in run.requests.iter().enumerate() {
        let journey = Journey {
            class: record.class,
            prompt_tokens: record.prompt_tokens,
            output_tokens: record.output_tokens,
            arrived: record.arrived,
            started: record.started,
            first_token: record.first_token,
            ended: record.ended,
        };
        events.extend(request(number as u64, &journey));
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}
