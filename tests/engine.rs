//! The engine: whatever runs beside a request, it gets the tokens that it gets alone.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use heg_runtime::Loaded;
use heg_runtime::engine::{Ask, Ending, Engine, EngineOptions, Update};
use heg_runtime::exec::ExecutorOptions;
use heg_runtime::sched::{Class, Finish};
use heg_runtime::text::SamplingParams;
use heg_spec::model::WeightForm;
use heg_spec::{Policy, shipped};
use heg_tests::{Seeded, Workbench, executor, fixture, greedy, openvino_or_skip};
use serde::Deserialize;

const CHUNK_TOKENS: usize = 32;
const ANSWER_TOKENS: usize = 12;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    input_ids: Vec<u32>,
}

/// A prompt, and what a lone executor answers.
struct Reference {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

fn bundle(workbench: &Workbench) -> PathBuf {
    let f32 = |spec: &mut heg_spec::ModelSpec| spec.weights = WeightForm::F32;
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", f32);
    compiled.unwrap().0
}

fn references(bundle: &Path, soc: &str) -> Vec<Reference> {
    let text = std::fs::read_to_string(fixture("tiny-agent").join("golden.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    let mut executor = executor(bundle, soc, CHUNK_TOKENS).unwrap();
    let prompts = golden.cases.into_iter().map(|case| case.input_ids);
    prompts
        .map(|prompt| {
            let mut sequence = executor.sequence().unwrap();
            let answer = greedy(&mut executor, &mut sequence, &prompt, ANSWER_TOKENS).unwrap();
            Reference { prompt, answer }
        })
        .collect()
}

fn engine(bundle: &Path, soc: &str, policy: &str, options: EngineOptions) -> Engine {
    let loaded = Loaded::open(bundle).unwrap();
    let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
    let policy: Policy = shipped::policy(policy).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: CHUNK_TOKENS,
            ..ExecutorOptions::default()
        },
        ..options
    };
    Engine::start(loader, policy, options).unwrap()
}

fn ask(class: Class, prompt: &[u32]) -> Ask {
    Ask {
        class,
        prompt: prompt.to_vec(),
        tokens_max: ANSWER_TOKENS as u32,
        eos_ids: Vec::new(),
        sampling: SamplingParams::default(),
        restriction: None,
        flow: None,
        deadline: None,
    }
}

/// What a request hears, to be waited for.
struct Answer(Receiver<Update>);

impl Answer {
    fn of(engine: &Engine, ask: Ask) -> Self {
        let (sender, updates) = channel();
        engine.submit(ask, move |update| {
            let _ = sender.send(update);
        });
        Self(updates)
    }

    fn wait(self) -> (Vec<u32>, Ending) {
        let mut tokens = Vec::new();
        loop {
            match self.0.recv_timeout(Duration::from_secs(120)).unwrap() {
                Update::Accepted { .. } => assert!(tokens.is_empty()),
                Update::Token(token) => tokens.push(token),
                Update::Finished(ending) => return (tokens, ending),
            }
        }
    }
}

#[test]
fn a_crowd_gets_the_tokens_that_each_gets_alone() {
    if !openvino_or_skip("a_crowd_gets_the_tokens_that_each_gets_alone") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench);
    for (soc, policy) in [
        ("host-cpu", "agent-xpu"),
        ("host-roles", "agent-xpu"),
        ("host-cpu", "cpu-continuous-batching"),
    ] {
        let references = references(&bundle, soc);
        let engine = engine(&bundle, soc, policy, EngineOptions::default());
        engine.wait_ready().unwrap();
        let mut seeded = Seeded::new(7);
        let mut answers = Vec::new();
        for round in 0..2 {
            for (at, reference) in references.iter().enumerate() {
                let class = match seeded.below(3) {
                    0 => Class::Reactive,
                    _ => Class::Proactive,
                };
                answers.push((at, Answer::of(&engine, ask(class, &reference.prompt))));
                if round == 1 {
                    std::thread::sleep(Duration::from_millis(seeded.below(30) as u64));
                }
            }
        }
        for (at, answer) in answers {
            let (tokens, ending) = answer.wait();
            assert_eq!(
                ending.finish,
                Finish::Complete,
                "{soc} {policy}: {:?}",
                ending.error
            );
            assert_eq!(tokens, references[at].answer, "{soc} {policy}, prompt {at}");
        }
        let status = engine.status().unwrap();
        assert_eq!(status.finished, 2 * references.len() as u64);
    }
}
