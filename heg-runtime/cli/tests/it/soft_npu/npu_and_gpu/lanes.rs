//! A server with a lane on the software NPU and one on lavapipe, its requests, and the trace of what ran where.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use heg_sched::{Class, Lane, LayerKernel, Micros, RequestId};
use heg_tests::soft_npu::{DeviceLog, SoftNpu};
use heg_workload::{LaunchOutcome, RunTrace, TracedCall, TracedLaunch, TracedRequest};
use serde_json::{Value, json};

use super::super::server::Server;
use super::GPU;

/// Tokens of a chunk of the NPU's kernels.
pub(super) const CHUNK: u32 = 32;

const SOC: &str = "core-ultra-7-258v";

/// A policy that ships with HEG, with some of its lines replaced.
pub(super) fn policy(text: &str, changes: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "the policy has no `{from}`");
        text = text.replace(from, to);
    }
    // A GPU in software does not hang: on a busy machine it waits for a core.
    let (rest, _) = text.rsplit_once(')').unwrap();
    format!("{rest}{LIMITS})")
}

/// The limits of policies that say nothing, but for the time in which a kernel counts as hung.
const LIMITS: &str = "limits: (
    tokens_per_iteration: 512, requests_max: 1024, kv_mib: 16384, timeout_factor: 20, timeout_min_ms: 100000,
),";

/// The policy that machines with an NPU have.
pub(super) const AGENT_XPU: &str =
    include_str!("../../../../../../graph-specs/policies/agent-xpu.ron");

/// Changes that leave reactive prompts whole, and each to one lane.
pub(super) const WHOLE: [(&str, &str); 4] = [
    ("elastic: true", "elastic: false"),
    (
        "split_beside_proactive_ms: Some(1000)",
        "split_beside_proactive_ms: None",
    ),
    ("short_prompts_aside: true", "short_prompts_aside: false"),
    (
        "long_prompts_aside_ms: Some(1000)",
        "long_prompts_aside_ms: None",
    ),
];

/// A server on both lanes.
pub(super) struct Lanes {
    world: SoftNpu,
    server: Server,
    trace: PathBuf,
}

impl Lanes {
    /// With a policy, and given times of the NPU's kernels.
    pub(super) fn start(policy: &str, times: &str) -> Self {
        let world = SoftNpu::new().beside_gpu(GPU);
        let file = world.folder().join("policy.ron");
        std::fs::write(&file, policy).unwrap();
        let trace = world.folder().join("trace.json");
        let paths = [&file, &trace].map(|path| path.to_str().unwrap());
        let arguments = ["--policy", paths[0], "--trace", paths[1]];
        let settings = [("PLATFORM", "4000"), ("TIMES", times)];
        let server = Server::start(&world, SOC, &arguments, &settings);
        Self {
            world,
            server,
            trace,
        }
    }

    /// Asks for the answer to messages, which take turns, of exactly `tokens` tokens.
    pub(super) fn ask(&self, class: Class, messages: &[&str], tokens: u32) -> String {
        ask(&self.server, class, messages, tokens)
    }

    /// Waits until the NPU has run kernels over the rows of prompts, behind the known answers of its two kernels in six
    /// layers.
    pub(super) fn wait_for_chunks(&self, runs: usize) {
        let ran = || {
            let log = self.log();
            let rows = log.of("run");
            rows.filter(|run| ["qkv", "ffn"].contains(&run.field("kernel")))
                .count()
        };
        while ran() < 12 + runs {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The calls of the NPU so far.
    pub(super) fn log(&self) -> DeviceLog {
        self.world.log()
    }

    /// A figure of `/metrics`, all of its labels together.
    pub(super) fn metric(&self, name: &str, label: &str) -> f64 {
        let text = get(&self.server, "/metrics");
        let of_name = text.lines().filter_map(|line| {
            let (key, value) = line.rsplit_once(' ')?;
            (key.starts_with(name) && key.contains(label))
                .then(|| value.parse::<f64>())?
                .ok()
        });
        of_name.sum()
    }

    /// Ends the server; nothing is left on the NPU.
    #[track_caller]
    pub(super) fn end(self) -> Run {
        self.server.end();
        assert_eq!(self.world.log().left(), Some([0; 6]));
        let trace = RunTrace::read(File::open(&self.trace).unwrap()).unwrap();
        assert_eq!(trace.left_out(), 0);
        Run {
            trace,
            log: self.world.log(),
        }
    }
}

/// A server's launches from its start to its end.
pub(super) struct Run {
    pub(super) trace: RunTrace,
    pub(super) log: DeviceLog,
}

/// A kernel of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub(super) lane: Lane,
    pub(super) kernel: LayerKernel,
    pub(super) layer: u32,
    /// Its first token.
    pub(super) position: u32,
    pub(super) tokens: u32,
    pub(super) start: Micros,
    pub(super) end: Micros,
}

impl Ran {
    pub(super) fn is_token_wise(&self) -> bool {
        self.kernel != LayerKernel::Mha
    }

    pub(super) fn is_chunk(&self) -> bool {
        self.tokens == CHUNK
    }
}

impl Run {
    /// The requests of a class, in the order in which they came.
    pub(super) fn requests(&self, class: Class) -> Vec<TracedRequest> {
        let mut all: Vec<_> = self.trace.requests().copied().collect();
        all.retain(|request| request.class == class);
        all.sort_by_key(|request| request.arrived);
        all
    }

    /// The launches that completed.
    pub(super) fn launches(&self) -> impl Iterator<Item = &TracedLaunch> {
        let launches = self.trace.launches().iter();
        launches.filter(|launch| launch.outcome == LaunchOutcome::Done)
    }

    /// The kernels of a request's prompt, in the order in which they started.
    pub(super) fn prompt(&self, id: RequestId) -> Vec<Ran> {
        let own = self.launches().filter(|it| it.requests.contains(&id));
        let ran = own.filter_map(|launch| match launch.call {
            TracedCall::Prefill {
                kernel,
                layer,
                segment,
            } => Some(Ran {
                lane: launch.lane,
                kernel,
                layer,
                position: segment.position,
                tokens: segment.tokens,
                start: launch.start,
                end: launch.end,
            }),
            _ => None,
        });
        let mut ran: Vec<Ran> = ran.collect();
        ran.sort_by_key(|ran| ran.start);
        ran
    }

    /// Lanes of the decode iterations of a request.
    pub(super) fn decoding_lanes(&self, id: RequestId) -> Vec<Lane> {
        let own = self.launches().filter(|it| it.requests.contains(&id));
        let decodes = own.filter(|it| matches!(it.call, TracedCall::Decode { .. }));
        decodes.map(|launch| launch.lane).collect()
    }
}

/// The text of an answer of exactly `tokens` tokens to messages, which take turns.
pub(super) fn ask(server: &Server, class: Class, messages: &[&str], tokens: u32) -> String {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages = messages.iter().zip(roles);
    let messages = messages.map(|(text, role)| json!({"role": role, "content": text}));
    let body = json!({
        "messages": messages.collect::<Vec<_>>(),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": true,
        "priority": match class {
            Class::Reactive => "reactive",
            Class::Proactive => "proactive",
        },
    })
    .to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n",
        body.len()
    );
    let reply = exchange(server, &head, &body);
    let body: Value = serde_json::from_str(&reply).unwrap_or_else(|_| panic!("{reply}"));
    let text = body["choices"][0]["message"]["content"].as_str();
    text.unwrap_or_else(|| panic!("{reply}")).to_owned()
}

fn get(server: &Server, path: &str) -> String {
    exchange(server, &format!("GET {path} HTTP/1.1\r\n"), "")
}

/// The body of a reply.
fn exchange(server: &Server, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    write!(
        stream,
        "{head}host: localhost\r\nconnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}
