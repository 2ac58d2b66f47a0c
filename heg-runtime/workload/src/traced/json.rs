//! Events in the Trace Event Format of Perfetto and `chrome://tracing`: a track for each lane with a slice for each
//! launch, and a track for each request with its life and its holds.

use serde_json::{Value, json};

use heg_sched::{Lane, Micros};

use super::names::{
    ARRIVES, AWAY, CLASSES, COMPILER, ENDS, FINISHES, FIRST_TOKEN, HOLD, KERNELS, LANE_NAMES,
    LANES, LEFT_OUT, MILESTONE, OUTCOMES, REQUESTS, STARTS_OVER, WARM_UP, name, parts,
};
use super::{
    LaneAway, LaunchOutcome, TraceEvent, TracedCall, TracedHold, TracedLaunch, TracedRequest,
};

/// Returns the entries that name the tracks of lanes.
pub(super) fn preamble() -> Vec<Value> {
    let process = |pid: u64, name: &str| json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}});
    let track = |tid: u64, name: &str| json!({"ph": "M", "pid": LANES, "tid": tid, "name": "thread_name", "args": {"name": name}});
    let mut events = vec![process(LANES, "lanes"), process(REQUESTS, "requests")];
    events.extend(Lane::ALL.map(|lane| track(lane as u64, name(&LANE_NAMES, &lane))));
    events.push(track(COMPILER, "compiler"));
    events
}

/// Returns the entries of a trace's file for an event.
pub(super) fn entries(event: &TraceEvent) -> Vec<Value> {
    match event {
        TraceEvent::Arrived(request) => arrival(request),
        TraceEvent::FirstToken(id, at) => vec![milestone(id.0, FIRST_TOKEN, *at, json!({}))],
        TraceEvent::Restarted(id, at) => vec![milestone(id.0, STARTS_OVER, *at, json!({}))],
        TraceEvent::Ended(request) => end(request),
        TraceEvent::Launch(launch) => vec![launch_slice(launch)],
        TraceEvent::Held(hold) => vec![hold_slice(hold)],
        TraceEvent::Away(absence) => {
            let name = match absence.state {
                LaneAway::Resetting => "resetting",
                LaneAway::Lost => "lost",
            };
            let track = (LANES, absence.lane as u64);
            vec![slice(
                track,
                (name, AWAY),
                (absence.start, absence.end),
                json!({}),
            )]
        }
        TraceEvent::WarmUp(warm_up) => {
            let kernel = warm_up.kernel;
            let args = json!({"tokens": kernel.tokens, "context": kernel.context});
            let span = (warm_up.start, warm_up.end);
            vec![slice((LANES, COMPILER), ("attention", WARM_UP), span, args)]
        }
    }
}

/// Returns the entry for the number of events that a trace lacks.
pub(super) fn left_out(events: u64, at: Micros) -> Value {
    json!({
        "ph": "i", "s": "g", "pid": LANES, "tid": 0, "name": format!("{events} events left out"), "cat": LEFT_OUT,
        "ts": at.0, "args": {"events": events},
    })
}

fn slice(
    (pid, tid): (u64, u64),
    (name, category): (&str, &str),
    (start, end): (Micros, Micros),
    args: Value,
) -> Value {
    json!({
        "ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category,
        "ts": start.0, "dur": end.since(start).0, "args": args,
    })
}

fn milestone(request: u64, name: &str, at: Micros, args: Value) -> Value {
    json!({
        "ph": "i", "s": "t", "pid": REQUESTS, "tid": request, "name": name, "cat": MILESTONE,
        "ts": at.0, "args": args,
    })
}

fn arrival(request: &TracedRequest) -> Vec<Value> {
    let class = name(&CLASSES, &request.class);
    let number = request.id.0;
    let title = json!({"name": format!("{class} {number}")});
    let args = json!({"class": class, "prompt_tokens": request.prompt_tokens});
    vec![
        json!({"ph": "M", "pid": REQUESTS, "tid": number, "name": "thread_name", "args": title}),
        milestone(number, ARRIVES, request.arrived, args),
    ]
}

/// Returns the entries for the end of a request and, for people, its phases.
fn end(request: &TracedRequest) -> Vec<Value> {
    let Some((ended, finish)) = request.ended else {
        return Vec::new();
    };
    let class = name(&CLASSES, &request.class);
    let number = request.id.0;
    let spans = [
        ("waiting", Some(request.arrived), request.started),
        ("prefill", request.started, request.first_token),
        ("decode", request.first_token, Some(ended)),
    ];
    let tokens =
        json!({"prompt_tokens": request.prompt_tokens, "output_tokens": request.output_tokens});
    let phases = spans.into_iter().filter_map(|(name, from, to)| {
        let span = from.zip(to)?;
        let tokens = tokens.clone();
        Some(slice((REQUESTS, number), (name, class), span, tokens))
    });
    let mut events: Vec<Value> = phases.collect();
    let args = json!({"finish": name(&FINISHES, &finish), "output_tokens": request.output_tokens});
    events.push(milestone(number, ENDS, ended, args));
    events
}

fn launch_slice(launch: &TracedLaunch) -> Value {
    let (title, mut args) = match launch.call {
        TracedCall::Prefill {
            kernel,
            layer,
            segment,
        } => (
            name(&KERNELS, &kernel),
            json!({"layer": layer, "position": segment.position, "tokens": segment.tokens}),
        ),
        TracedCall::Head => ("head", json!({})),
        TracedCall::Decode {
            first_layer,
            end_layer,
            fused,
        } => (
            "decode",
            json!({"layers": [first_layer, end_layer], "fused": fused}),
        ),
        TracedCall::Iteration { prompt_tokens } => {
            ("iteration", json!({"prompt_tokens": prompt_tokens}))
        }
    };
    args["requests"] = launch.requests.iter().map(|id| id.0).collect();
    if launch.outcome != LaunchOutcome::Done {
        args["outcome"] = name(&OUTCOMES, &launch.outcome).into();
    }
    if launch.flash_tokens > 0 {
        args["flash_tokens"] = launch.flash_tokens.into();
    }
    if launch.kept_tokens > 0 {
        args["kept_tokens"] = launch.kept_tokens.into();
    }
    if launch.baked_tokens > 0 {
        args["baked_tokens"] = launch.baked_tokens.into();
    }
    slice(
        (LANES, launch.lane as u64),
        (title, name(&CLASSES, &launch.class)),
        (launch.start, launch.end),
        args,
    )
}

fn hold_slice(hold: &TracedHold) -> Value {
    let parts = parts(hold.why);
    let mut args = json!({});
    if let Some(of) = parts.of {
        args["of"] = of.0.into();
    }
    if let Some(lane) = parts.lane {
        args["lane"] = name(&LANE_NAMES, &lane).into();
    }
    let span = (hold.start, hold.end);
    slice((REQUESTS, hold.request.0), (parts.name, HOLD), span, args)
}
