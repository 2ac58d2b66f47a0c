//! Drafts change no answer: with and without them a request gets the same tokens, greedily and sampled, alone and in a crowd
//! of either class, on prefixes that other calls left in memory and on caches that were on flash.
//!
//! `HEG_FULL=1` asks all questions; by default a part of them.

mod calibration;
mod edges;
mod forms;
mod histories;
mod predictions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use heg_runtime::Loaded;
use heg_runtime::engine::{Ending, Engine, EngineOptions, Generation, Request, Speculation};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::{Action, Class, Event, Finish, FlowId, Micros, Observer};
use heg_spec::{Policy, WeightForm, shipped};
use heg_tests::questions::{agent_30m, questions};
use heg_tests::{Workbench, fetched, fixture};
use heg_text::{SamplingParams, Special};

/// Maximum number of tokens of an answer.
const ANSWER_TOKENS: u32 = 48;

/// A compiled model, with its questions.
struct Subject {
    _workbench: Workbench,
    bundle: PathBuf,
    soc: &'static str,
    prompts: Vec<Vec<u32>>,
}

impl Subject {
    /// Compiles a model; `part` is the number of questions, if not all are asked.
    fn new(model: &Path, weights: WeightForm, part: usize, all: usize) -> Self {
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(model, "model", |spec| spec.weights = weights);
        let (bundle, _) = compiled.unwrap();
        let prompts = prompts(&bundle, part, all);
        Self {
            _workbench: workbench,
            bundle,
            soc: match weights {
                WeightForm::F32 => "host-cpu-f32",
                _ => "host-cpu",
            },
            prompts,
        }
    }

    fn tiny_agent(weights: WeightForm) -> Self {
        Self::new(&fixture("tiny-agent"), weights, 20, 200)
    }

    fn engine(&self, speculation: Speculation) -> Engine {
        let policy = shipped::policy("agent-xpu-one-device").unwrap();
        self.engine_under(policy, speculation, None).0
    }

    /// Returns an engine, and a counter of the caches that it has written to flash.
    fn engine_under(
        &self,
        policy: Policy,
        speculation: Speculation,
        flash: Option<&Path>,
    ) -> (Engine, Offloads) {
        let loader = Loaded::open(&self.bundle).unwrap();
        let loader = loader.loader(&shipped::soc(self.soc).unwrap()).unwrap();
        let offloads = Offloads::default();
        let options = EngineOptions {
            exec: ExecutorOptions {
                chunk_tokens: 64,
                ..ExecutorOptions::default()
            },
            speculation,
            flash: flash.map(Path::to_owned),
            observers: vec![Box::new(offloads.clone())],
            ..EngineOptions::default()
        };
        let engine = Engine::start(loader, policy, options).unwrap();
        engine.wait_ready().unwrap();
        (engine, offloads)
    }

    /// Returns the answers without drafts, one after the other.
    fn plain(&self) -> Vec<Vec<u32>> {
        let plain = self.engine(Speculation::Off);
        let asked = (0..).zip(&self.prompts);
        asked
            .map(|(at, prompt)| answer(plain.generate(request(at, prompt))).0)
            .collect()
    }

    /// Compares answers with drafts to those without, one after the other and all at once. Returns the number of tokens
    /// per decode iteration.
    fn check(&self, speculation: Speculation, expected: &[Vec<u32>]) -> f64 {
        let a_step = self.check_on(&self.engine(speculation), expected);
        println!("{speculation:?}: {a_step:.2} tokens a step");
        a_step
    }

    /// The same, and that a step gives more than a token. What an engine drafts depends on the time that rows take when it
    /// begins: one that began while others had the cores may draft nothing, three do not.
    fn drafts_are_taken(&self, speculation: Speculation, expected: &[Vec<u32>]) {
        let mut engines = (0..3).map(|_| self.check(speculation, expected));
        assert!(engines.any(|a_step| a_step > 1.0), "{speculation:?}");
    }

    /// Compares answers in the same way, on an existing engine that drafts.
    fn check_on(&self, drafting: &Engine, expected: &[Vec<u32>]) -> f64 {
        let (mut steps, mut decoded) = (0, 0);
        for (at, prompt) in self.prompts.iter().enumerate() {
            let (tokens, ending) = answer(drafting.generate(request(at, prompt)));
            assert_eq!(tokens, expected[at], "prompt {at}");
            let drafts = ending.drafts.unwrap();
            assert_eq!(drafts.steps + drafts.accepted_tokens + 1, ending.generated);
            (steps, decoded) = (steps + drafts.steps, decoded + ending.generated - 1);
        }
        // All at once, while some are cancelled.
        let asked = self.prompts.iter().enumerate();
        let crowd: Vec<Generation> = asked
            .map(|(at, prompt)| {
                if at % 5 == 0 {
                    drop(drafting.generate(request(at, prompt)));
                }
                drafting.generate(request(at, prompt))
            })
            .collect();
        for (at, generation) in crowd.into_iter().enumerate() {
            let tokens = answer(generation).0;
            assert_eq!(tokens, expected[at], "prompt {at} in a crowd");
        }
        f64::from(decoded) / f64::from(steps.max(1))
    }
}

/// Counts caches that go to flash.
#[derive(Clone, Default)]
struct Offloads(Arc<AtomicUsize>);

impl Observer for Offloads {
    fn stepped(&mut self, _: Micros, event: &Event, _: &[Action]) {
        let count = usize::from(matches!(event, Event::Offloaded(_)));
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// Evaluation questions of the small models, as token ids of this one.
fn prompts(bundle: &Path, part: usize, all: usize) -> Vec<Vec<u32>> {
    let loaded = Loaded::open(bundle).unwrap();
    let tokenizer = loaded.tokenizer().unwrap();
    let questions = questions(&fixture("tiny-agent")).unwrap().into_iter();
    let questions = questions.map(|question| {
        tokenizer
            .encode(&question.prompt, Special::AsWritten)
            .unwrap()
    });
    let count = match std::env::var_os("HEG_FULL") {
        Some(_) => all,
        None => part,
    };
    questions.step_by(200 / count).take(count).collect()
}

/// Returns the request for a prompt: some are greedy, some sampled, some with penalties.
fn request(at: usize, prompt: &[u32]) -> Request {
    let class = match at % 3 {
        0 => Class::Reactive,
        _ => Class::Proactive,
    };
    let sampled = SamplingParams {
        temperature: 0.8,
        seed: at as u64,
        ..SamplingParams::default()
    };
    let sampling = match at % 4 {
        0 | 1 => SamplingParams::default(),
        2 => sampled,
        _ => SamplingParams {
            top_p: 0.9,
            repetition_penalty: 1.1,
            presence_penalty: 0.3,
            ..sampled
        },
    };
    Request {
        tokens_max: ANSWER_TOKENS,
        sampling,
        ..Request::new(class, prompt.to_vec())
    }
}

fn answer(generation: Generation) -> (Vec<u32>, Ending) {
    let (tokens, ending) = generation.wait().unwrap();
    assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
    (tokens, ending)
}

#[test]
fn tiny_agent_says_the_same_in_int8() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let expected = subject.plain();
    for speculation in [Speculation::Chain, Speculation::Tree] {
        subject.drafts_are_taken(speculation, &expected);
    }
}

#[test]
fn tiny_agent_says_the_same_in_f32() {
    let subject = Subject::tiny_agent(WeightForm::F32);
    let expected = subject.plain();
    for speculation in [Speculation::Chain, Speculation::Tree] {
        subject.drafts_are_taken(speculation, &expected);
    }
}

#[test]
fn agent_30m_says_the_same() {
    let Some(model) = agent_30m("agent_30m_says_the_same") else {
        return;
    };
    for weights in [WeightForm::W8A16, WeightForm::F32] {
        let subject = Subject::new(&model, weights, 8, 200);
        let expected = subject.plain();
        for speculation in [Speculation::Chain, Speculation::Tree] {
            subject.check(speculation, &expected);
        }
    }
}

#[test]
fn smollm2_says_the_same() {
    let Some(file) = fetched::smollm2("drafts of a trained model") else {
        return;
    };
    let subject = Subject::new(&file, WeightForm::W8A16, 5, 100);
    let expected = subject.plain();
    for speculation in [Speculation::Chain, Speculation::Tree] {
        subject.check(speculation, &expected);
    }
}

/// A second turn on the cache of the first: all tokens of the flow, drafted tokens among them, are read again.
#[test]
fn a_flow_goes_on_with_what_was_drafted_in_memory_and_on_flash() {
    let mut subject = Subject::tiny_agent(WeightForm::W8A16);
    // The engine keeps the caches of 128 flows; beyond that each first turn would evict another's.
    subject.prompts.truncate(100);
    let plain = subject.engine(Speculation::Off);
    let turns = |at: usize, first: &[u32]| -> Vec<u32> {
        [&subject.prompts[at], first, &subject.prompts[(at + 1) % 3]].concat()
    };
    let expected: Vec<[Vec<u32>; 2]> = (0..subject.prompts.len())
        .map(|at| {
            let first = answer(plain.generate(request(at, &subject.prompts[at]))).0;
            let second = answer(plain.generate(request(at, &turns(at, &first)))).0;
            [first, second]
        })
        .collect();
    for (is_tight, is_calibrated) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut policy = shipped::policy("agent-xpu-one-device").unwrap();
        policy.limits.requests_max = 1000;
        policy.limits.flash_mib = 1024;
        policy.limits.kv_mib = if is_tight { 4 } else { 512 };
        if is_calibrated {
            policy.drafts = calibration::ALL;
        }
        let folder = tempfile::tempdir().unwrap();
        let flash = Some(folder.path());
        let (drafting, offloads) = subject.engine_under(policy, Speculation::Tree, flash);
        let flows: Vec<FlowId> = expected.iter().map(|_| drafting.new_flow()).collect();
        let mut reused = 0;
        for turn in 0..2 {
            for (at, (answers, flow)) in expected.iter().zip(&flows).enumerate() {
                let prompt = match turn {
                    0 => subject.prompts[at].clone(),
                    _ => turns(at, &answers[0]),
                };
                let asked = Request {
                    flow: Some(*flow),
                    ..request(at, &prompt)
                };
                let (tokens, ending) = answer(drafting.generate(asked));
                assert_eq!(
                    tokens, answers[turn],
                    "turn {turn} of {at}, tight: {is_tight}"
                );
                reused += ending.reused_tokens;
            }
            // The calibration from the first turn is kept with its flow, wherever that is.
            let rows = calibration::calibrated(&drafting);
            assert_eq!(rows > 0, is_calibrated, "{rows}");
        }
        let prompts: usize = subject.prompts.iter().map(Vec::len).sum();
        assert!(reused as usize > prompts / 2, "{reused} of {prompts}");
        let offloads = offloads.0.load(Ordering::Relaxed);
        assert_eq!(offloads > subject.prompts.len() / 2, is_tight, "{offloads}");
    }
}
