//! Lanes of an NPU and of an iGPU in one server, with given times on the NPU: mechanisms of Agent.xpu, each with a run in
//! which it is off, and lanes that are lost. OpenVINO's CPU device plays the iGPU, over the same f16 cache.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use heg_tests::soft_npu::{SoftNpu, soft_npu_or_skip};

use super::server::Server;
use super::{answer, bundle, heg};

/// An NPU, and a CPU that plays the iGPU. Its plugin rounds no activations to 8 bits, so that tokens do not depend on which
/// lane had time for a part of a prompt.
const SOC: &str = r#"(
    name: "npu-beside-igpu",
    devices: [
        (class: Npu, openvino: "NPU"),
        (
            class: Igpu,
            openvino: "CPU",
            properties: {
                "INFERENCE_PRECISION_HINT": "f32",
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
                "NUM_STREAMS": "1",
            },
        ),
    ],
)"#;

/// Agent.xpu's mechanisms that a test switches.
#[derive(Debug, Clone, Copy)]
struct Mechanisms {
    /// Reactive prompts go before proactive ones at the next kernel (Agent.xpu 4.4).
    preempt: bool,
    /// Kernels of reactive prompts are split over both lanes (4.3).
    elastic: bool,
}

const NONE: Mechanisms = Mechanisms {
    preempt: false,
    elastic: false,
};

/// A world with a server on both lanes.
struct TwoLanes {
    world: SoftNpu,
    server: Server,
}

impl TwoLanes {
    fn start(mechanisms: Mechanisms, settings: &[(&str, &str)]) -> Self {
        let world = SoftNpu::new();
        let write = |name: &str, text: &str| -> PathBuf {
            let path = world.folder().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let soc = write("soc.ron", SOC);
        let policy = write("policy.ron", &policy(mechanisms));
        let settings = [&[("PLATFORM", "4000")], settings].concat();
        let arguments = ["--policy", policy.to_str().unwrap()];
        let server = Server::start(&world, soc.to_str().unwrap(), &arguments, &settings);
        Self { world, server }
    }

    /// Priorities of the NPU's runs so far over the rows of chunks, in order.
    fn priorities(&self) -> Vec<u64> {
        let log = self.world.log();
        let is_of_rows = |kernel: &str| ["qkv", "ffn"].contains(&kernel);
        let runs = log.of("run").filter(|run| is_of_rows(run.field("kernel")));
        runs.map(|run| run.number("priority")).collect()
    }

    /// Number of the NPU's runs so far.
    fn runs(&self) -> usize {
        self.world.log().count("run")
    }

    /// Ends the server; nothing is left on the device.
    #[track_caller]
    fn end(self) {
        self.server.end();
        assert_eq!(self.world.log().left(), Some([0; 6]));
    }
}

/// A policy in which nothing else moves kernels between the lanes.
fn policy(mechanisms: Mechanisms) -> String {
    let Mechanisms { preempt, elastic } = mechanisms;
    format!(
        "(
            name: \"test\",
            scheduler: AgentXpu,
            prefill: (
                preempt: {preempt},
                elastic: {elastic},
                balance: false,
                defer_remainder: false,
                attention: Off,
                joint_bandwidth_max: None,
                resume: Arrival,
            ),
            decode: (
                batch_max: 32,
                reactive_batch_max: Some(3),
                evict_longest: true,
                prefill_first: true,
                fused_layer: true,
            ),
            ageing: Some((threshold_ms: 30000)),
        )"
    )
}

/// A prompt of several chunks.
fn prompt(question: &str, times: usize) -> String {
    vec![question; times].join(" ")
}

/// The answer of a CPU in f32.
fn expected(prompt: &str, tokens: usize) -> String {
    let tokens = tokens.to_string();
    let mut arguments = answer(bundle(), "host-cpu-f32", prompt).to_vec();
    let at = arguments.iter().position(|it| *it == "12").unwrap();
    arguments[at] = &tokens;
    let report = heg(bundle(), &arguments, &[]).json();
    report["text"].as_str().unwrap().to_owned()
}

/// Both wait for their answers while the other runs; returns how long the reactive one took, and its share of the order.
fn side_by_side(lanes: &TwoLanes) -> (Duration, Vec<u64>) {
    let proactive = prompt("Will it rain in Oslo tomorrow?", 30);
    let reactive = prompt("Remind me to call Ana at 5 pm.", 10);
    let wanted = [&proactive, &reactive].map(|prompt| expected(prompt, 2));
    let took = thread::scope(|scope| {
        let background = scope.spawn(|| lanes.server.ask(&proactive, 2, "proactive"));
        // Until it is at work on the NPU, behind the known answers of its two kernels in six layers.
        while lanes.priorities().len() < 12 + 4 {
            thread::sleep(Duration::from_millis(2));
        }
        let begin = Instant::now();
        assert_eq!(lanes.server.ask(&reactive, 2, "reactive"), wanted[1]);
        let took = begin.elapsed();
        assert_eq!(background.join().unwrap(), wanted[0]);
        took
    });
    (took, lanes.priorities())
}

/// A prompt that somebody waits for goes before the rest of one that nobody does, and is urgent on the device too.
#[test]
fn a_reactive_prompt_preempts_a_proactive_one_on_the_npu() {
    if !soft_npu_or_skip("preemption on the lane of a software NPU") {
        return;
    }
    // Chosen: the background prompt takes seconds, and a client is heard within them on a busy machine.
    let times = [("TIMES", "qkv=25000,ffn=25000")];
    let on = Mechanisms {
        preempt: true,
        ..NONE
    };
    let [with, without] = [on, NONE].map(|mechanisms| {
        let lanes = TwoLanes::start(mechanisms, &times);
        let found = side_by_side(&lanes);
        lanes.end();
        found
    });
    // Priority 2 is urgent; there is background work behind its first run only if it went before that.
    let goes_on = |priorities: &[u64]| {
        let first = priorities.iter().position(|priority| *priority == 2);
        priorities[first.unwrap()..]
            .iter()
            .filter(|it| **it == 0)
            .count()
    };
    assert!(goes_on(&with.1) > 0, "{:?}", with.1);
    assert_eq!(goes_on(&without.1), 0, "{:?}", without.1);
    assert!(with.0 < without.0, "{:?}, {:?}", with.0, without.0);
}

/// Of a prompt that somebody waits for the iGPU takes chunks that the slow NPU would have had.
#[test]
fn kernels_of_a_prompt_are_split_between_npu_and_igpu() {
    if !soft_npu_or_skip("a split between the lanes of a software NPU and an iGPU") {
        return;
    }
    let prompt = prompt("Will it rain in Oslo tomorrow?", 12);
    let wanted = expected(&prompt, 2);
    let on = Mechanisms {
        elastic: true,
        ..NONE
    };
    let [split, whole] = [on, NONE].map(|mechanisms| {
        // Chosen: long enough for the iGPU to be faster on a machine that is busy.
        let lanes = TwoLanes::start(mechanisms, &[("TIMES", "qkv=30000,ffn=30000")]);
        assert_eq!(lanes.server.ask(&prompt, 2, "reactive"), wanted);
        let urgent = lanes.priorities().iter().filter(|it| **it == 2).count();
        lanes.end();
        urgent
    });
    assert!(whole > 20 && split < whole, "{split}, {whole}");
}

/// Number of the run in the middle of a prompt on the NPU, known answers before it counted.
fn in_prompt() -> usize {
    static RUNS: OnceLock<usize> = OnceLock::new();
    *RUNS.get_or_init(|| {
        let lanes = TwoLanes::start(NONE, &[]);
        lanes.server.ask(&lost_prompt(0), 4, "reactive");
        let runs = lanes.runs();
        lanes.end();
        runs - 10
    })
}

fn lost_prompt(number: usize) -> String {
    format!("{} {number}", prompt("Remind me to call Ana at 5 pm.", 10))
}

/// With a fault at a run in a prompt, or with `+` from there on: the answer that was under way is right, and so are those
/// that follow. Returns how long the server took to end.
#[track_caller]
fn answers_beside(fault: &str, calls: &str) -> Duration {
    let faults = format!("{fault}@{}{calls}", in_prompt());
    let lanes = TwoLanes::start(NONE, &[("FAULTS", &faults)]);
    for number in 0..2 {
        let prompt = lost_prompt(number);
        let text = lanes.server.ask(&prompt, 4, "reactive");
        assert_eq!(text, expected(&prompt, 4), "{faults}");
    }
    let TwoLanes { world, server } = lanes;
    let took = server.end();
    assert!(world.log().count("FAULT") > 0, "{faults} never happened");
    if !faults.starts_with("hang") {
        assert_eq!(world.log().left(), Some([0; 6]), "{faults}");
    }
    took
}

#[test]
fn an_npu_that_is_lost_while_it_serves_leaves_the_igpu() {
    if !soft_npu_or_skip("an NPU that is lost while it serves") {
        return;
    }
    for (fault, calls) in [("lost", ""), ("lost", "+"), ("abort", "")] {
        answers_beside(fault, calls);
    }
}

/// A run that never ends: its lane is given up, and the server's end waits for it no longer than ten seconds.
#[test]
fn an_npu_that_hangs_while_it_serves_leaves_the_igpu() {
    if !soft_npu_or_skip("an NPU that hangs while it serves") {
        return;
    }
    let took = answers_beside("hang", "");
    assert!(took < Duration::from_secs(15), "{took:?}");
}
