//! Traces of a run in the Trace Event Format of Perfetto and `chrome://tracing`: a track for each lane with a slice for
//! each launch, and a track for each request with its queueing, prefill and decode.
//!
//! The simulator writes a whole run at its end; [`TraceFile`] writes what an engine does as it happens.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};

use heg_sched::Observer;
use heg_sched::{Action, Class, Event, Kernel, Lane, Micros, RequestId, Submission, Ticket, Work};

/// A slice of a lane's track.
pub struct LaunchSlice<'a> {
    pub lane: Lane,
    pub work: &'a Work,
    pub start: Micros,
    pub end: Micros,
}

/// A request's track: the times of its phases.
#[derive(Debug, Clone, Copy)]
pub struct Journey {
    pub class: Class,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub arrived: Option<Micros>,
    pub started: Option<Micros>,
    pub first_token: Option<Micros>,
    pub ended: Option<Micros>,
}

/// Names of the tracks of lanes.
pub fn preamble() -> Vec<Value> {
    let process = |pid: u32, name: &str| json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}});
    let lane = |lane: Lane| {
        let args = json!({"name": lane_name(lane)});
        json!({"ph": "M", "pid": LANES, "tid": lane as usize, "name": "thread_name", "args": args})
    };
    let mut events = vec![process(LANES, "lanes"), process(REQUESTS, "requests")];
    events.extend(Lane::ALL.map(lane));
    events
}

/// A launch on its lane's track.
pub fn launch(slice: &LaunchSlice<'_>, class: impl Fn(RequestId) -> Option<Class>) -> Value {
    let (name, ids, mut args) = match slice.work {
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
            slice.work.requests(),
            json!({"layers": [run.layers.start, run.layers.end], "fused": run.fused}),
        ),
        Work::Mixed { prompts, .. } => (
            "iteration",
            slice.work.requests(),
            json!({"prompt_tokens": prompts.iter().map(|(_, s)| s.tokens).sum::<u32>()}),
        ),
    };
    let urgent = ids.iter().any(|id| class(*id) == Some(Class::Reactive));
    args["requests"] = ids.iter().map(|id| id.0).collect();
    json!({
        "ph": "X", "pid": LANES, "tid": slice.lane as usize, "name": name,
        "cat": if urgent { "reactive" } else { "proactive" },
        "ts": slice.start.0, "dur": slice.end.since(slice.start).0, "args": args,
    })
}

/// A request's track, by its number.
pub fn request(number: u64, journey: &Journey) -> Vec<Value> {
    let class = match journey.class {
        Class::Reactive => "reactive",
        Class::Proactive => "proactive",
    };
    let spans = [
        ("waiting", journey.arrived, journey.started),
        ("prefill", journey.started, journey.first_token),
        ("decode", journey.first_token, journey.ended),
    ];
    let mut events = Vec::new();
    if journey.arrived.is_some() {
        let args = json!({"name": format!("{class} {number}")});
        events.push(
            json!({"ph": "M", "pid": REQUESTS, "tid": number, "name": "thread_name", "args": args}),
        );
    }
    for (name, from, to) in spans {
        let Some((from, to)) = from.zip(to) else {
            continue;
        };
        events.push(json!({
            "ph": "X", "pid": REQUESTS, "tid": number, "name": name, "cat": class,
            "ts": from.0, "dur": to.since(from).0,
            "args": {"prompt_tokens": journey.prompt_tokens, "output_tokens": journey.output_tokens},
        }));
    }
    events
}

/// A trace that is written while an engine runs.
///
/// It is a JSON array, which its readers take without the end too: a killed process leaves a trace of what was
/// written. What cannot be written is left out, and ends the trace.
pub struct TraceFile {
    file: Option<BufWriter<File>>,
    running: HashMap<Ticket, (Lane, Work, Micros)>,
    live: HashMap<RequestId, Journey>,
}

impl TraceFile {
    /// A trace in a new file, in place of what was there.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        for (place, event) in preamble().iter().enumerate() {
            let before = if place == 0 { "[" } else { "," };
            writeln!(file, "{before}{event}")?;
        }
        Ok(Self {
            file: Some(file),
            running: HashMap::new(),
            live: HashMap::new(),
        })
    }

    fn write(&mut self, event: &Value) {
        let written = self.file.as_mut().map(|file| writeln!(file, ",{event}"));
        if matches!(written, Some(Err(_))) {
            self.file = None;
        }
    }

    fn launch_ended(&mut self, ticket: Ticket, end: Micros) {
        if let Some((lane, work, start)) = self.running.remove(&ticket) {
            let slice = LaunchSlice {
                lane,
                work: &work,
                start,
                end,
            };
            let class = |id| self.live.get(&id).map(|journey| journey.class);
            let event = launch(&slice, class);
            self.write(&event);
        }
    }

    fn launch_begun(&mut self, ticket: Ticket, lane: Lane, work: &Work, now: Micros) {
        if let Work::Prefill { request, .. } = work
            && let Some(journey) = self.live.get_mut(request)
        {
            journey.started.get_or_insert(now);
        }
        self.running.insert(ticket, (lane, work.clone(), now));
    }

    fn request_ended(&mut self, id: RequestId, now: Micros) {
        if let Some(mut journey) = self.live.remove(&id) {
            journey.ended = Some(now);
            for event in request(id.0, &journey) {
                self.write(&event);
            }
        }
    }
}

impl Observer for TraceFile {
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        match event {
            Event::Submit(submission) => {
                self.live
                    .insert(submission.id, Journey::begun(submission, now));
            }
            Event::Done { ticket, .. } | Event::Failed(ticket) | Event::OutOfMemory(ticket) => {
                self.launch_ended(*ticket, now);
            }
            Event::Lost(gone) => self.running.retain(|_, (lane, ..)| lane != gone),
            _ => {}
        }
        for action in actions {
            match action {
                Action::Launch { lane, ticket, work } => {
                    self.launch_begun(*ticket, *lane, work, now);
                }
                Action::Emit(id) => {
                    if let Some(journey) = self.live.get_mut(id) {
                        journey.first_token.get_or_insert(now);
                        journey.output_tokens += 1;
                    }
                }
                Action::Finish(id, _) => self.request_ended(*id, now),
                _ => {}
            }
        }
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        if let Some(file) = &mut self.file {
            // Nobody is left to hear of a failure; readers do without the end.
            let _ = file.write_all(b"]\n").and_then(|()| file.flush());
        }
    }
}

impl Journey {
    fn begun(submission: &Submission, now: Micros) -> Self {
        Self {
            class: submission.class,
            prompt_tokens: submission.prompt_tokens,
            output_tokens: 0,
            arrived: Some(now),
            started: None,
            first_token: None,
            ended: None,
        }
    }
}

fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Npu => "NPU",
        Lane::Igpu => "iGPU",
        Lane::Cpu => "CPU",
    }
}

const LANES: u32 = 1;
const REQUESTS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use heg_sched::{Finish, PromptLogits};

    #[test]
    fn a_trace_has_launches_and_requests() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut trace = TraceFile::create(&path).unwrap();
        let id = RequestId(3);
        let submission = Submission {
            id,
            flow: None,
            class: Class::Reactive,
            prompt_tokens: 5,
            shared_tokens: 0,
            output_tokens_max: 1,
            deadline: None,
            prompt_logits: PromptLogits::LastRow,
        };
        let ticket = Ticket(0);
        let launch = Action::Launch {
            lane: Lane::Igpu,
            ticket,
            work: Work::Head(id),
        };
        trace.stepped(Micros(10), &Event::Submit(submission), &[launch]);
        let done = Event::Done {
            ticket,
            layers: 0,
            ended: vec![id],
            given: Vec::new(),
        };
        let actions = [Action::Emit(id), Action::Finish(id, Finish::Complete)];
        trace.stepped(Micros(35), &done, &actions);
        drop(trace);
        let text = std::fs::read_to_string(&path).unwrap();
        serde_json::from_str::<Vec<Value>>(&text).unwrap();
        insta::assert_snapshot!(text);
    }
}
