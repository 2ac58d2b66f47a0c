//! A run as a trace that Perfetto and `chrome://tracing` show: a track for each lane, a slice for each launch,
//! and a track for each request with its arrival, its prefill and its decoding.

use serde_json::{Value, json};

use super::engine::{Run, Slice};
use super::meter::RequestRecord;
use crate::sched::{Class, Kernel, Lane, Micros, RequestId, Work};

/// The run as JSON in the Trace Event Format; times are in µs of virtual time. Of a run that kept its timeline.
pub fn chrome_trace(run: &Run) -> Value {
    let mut events = Vec::new();
    for (pid, name) in [(LANES, "lanes"), (REQUESTS, "requests")] {
        events.push(json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}));
    }
    for lane in Lane::ALL {
        let args = json!({"name": lane_name(lane)});
        events.push(
            json!({"ph": "M", "pid": LANES, "tid": lane as usize, "name": "thread_name", "args": args}),
        );
    }
    let class = |id: RequestId| run.requests.get(id.0 as usize).map(|r| r.class);
    events.extend(run.timeline.iter().map(|slice| launch(slice, class)));
    for (place, record) in run.requests.iter().enumerate() {
        request(place, record, &mut events);
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}

const LANES: u32 = 1;
const REQUESTS: u32 = 2;

fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Npu => "NPU",
        Lane::Igpu => "iGPU",
        Lane::Cpu => "CPU",
    }
}

fn launch(slice: &Slice, class: impl Fn(RequestId) -> Option<Class>) -> Value {
    let (name, ids, args) = match &slice.work {
        Work::Prefill {
            request,
            segment,
            layer,
            kernel,
        } => (
            match kernel {
                Kernel::Qkv => "qkv",
                Kernel::Mha => "mha",
                Kernel::Ffn => "ffn",
            },
            vec![*request],
            json!({"layer": layer, "position": segment.position, "tokens": segment.tokens}),
        ),
        Work::Head(request) => ("head", vec![*request], json!({})),
        Work::Decode(run) => (
            "decode",
            run.batch.iter().map(|(id, _)| *id).collect(),
            json!({"layers": [run.layers.start, run.layers.end], "fused": run.fused}),
        ),
        Work::Mixed { batch, prompts } => (
            "iteration",
            batch
                .iter()
                .map(|(id, _)| *id)
                .chain(prompts.iter().map(|(id, _)| *id))
                .collect(),
            json!({"prompt_tokens": prompts.iter().map(|(_, s)| s.tokens).sum::<u32>()}),
        ),
    };
    let urgent = ids.iter().any(|id| class(*id) == Some(Class::Reactive));
    let mut args = args;
    args["requests"] = ids.iter().map(|id| id.0).collect();
    json!({
        "ph": "X", "pid": LANES, "tid": slice.lane as usize, "name": name,
        "cat": if urgent { "reactive" } else { "proactive" },
        "ts": slice.start.0, "dur": slice.end.since(slice.start).0, "args": args,
    })
}

fn request(place: usize, record: &RequestRecord, events: &mut Vec<Value>) {
    let class = match record.class {
        Class::Reactive => "reactive",
        Class::Proactive => "proactive",
    };
    let spans = [
        ("waiting", record.arrived, record.started),
        ("prefill", record.started, record.first_token),
        ("decode", record.first_token, record.ended),
    ];
    if record.arrived.is_some() {
        let args = json!({"name": format!("{class} {place}")});
        events.push(
            json!({"ph": "M", "pid": REQUESTS, "tid": place, "name": "thread_name", "args": args}),
        );
    }
    for (name, from, to) in spans {
        let Some((from, to)) = from.zip(to) else {
            continue;
        };
        let span: Micros = to.since(from);
        events.push(json!({
            "ph": "X", "pid": REQUESTS, "tid": place, "name": name, "cat": class,
            "ts": from.0, "dur": span.0,
            "args": {"prompt_tokens": record.prompt_tokens, "output_tokens": record.output_tokens},
        }));
    }
}
