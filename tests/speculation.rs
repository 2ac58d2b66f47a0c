//! Drafts change no answer: with and without them, a request gets the same tokens, greedily and sampled, alone and in a
//! crowd of either class.
//!
//! `HEG_FULL=1` asks all 200 questions; by default a part of them.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::path::Path;

use heg_runtime::Loaded;
use heg_runtime::engine::{Ending, Engine, EngineOptions, Generation, Request, Speculation};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::{Class, Finish};
use heg_spec::{WeightForm, shipped};
use heg_tests::questions::questions;
use heg_tests::{Workbench, fixture};
use heg_text::{SamplingParams, Special};

/// Longest answer.
const ANSWER_TOKENS: u32 = 48;

/// Prompts of the evaluation questions, as token ids.
fn prompts(bundle: &Path) -> Vec<Vec<u32>> {
    let loaded = Loaded::open(bundle).unwrap();
    let tokenizer = loaded.tokenizer().unwrap();
    let all = questions(&fixture("tiny-agent")).unwrap().into_iter();
    let all = all.map(|question| {
        tokenizer
            .encode(&question.prompt, Special::AsWritten)
            .unwrap()
    });
    let step = if std::env::var_os("HEG_FULL").is_some() {
        1
    } else {
        5
    };
    all.step_by(step).collect()
}

fn engine(bundle: &Path, soc: &str, policy: &str, speculation: Speculation) -> Engine {
    let loader = Loaded::open(bundle).unwrap();
    let loader = loader.loader(&shipped::soc(soc).unwrap()).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: 64,
            ..ExecutorOptions::default()
        },
        speculation,
        ..EngineOptions::default()
    };
    let engine = Engine::start(loader, shipped::policy(policy).unwrap(), options).unwrap();
    engine.wait_ready().unwrap();
    engine
}

/// The request of a prompt: some greedy, some sampled, some with penalties.
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

fn check(weights: WeightForm, soc: &str) {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |spec| {
        spec.weights = weights;
    });
    let (bundle, _) = compiled.unwrap();
    let prompts = prompts(&bundle);
    let policy = "agent-xpu-one-device";
    let plain = engine(&bundle, soc, policy, Speculation::Off);
    let drafting = engine(&bundle, soc, policy, Speculation::Chain);
    let expected: Vec<Vec<u32>> = (0..)
        .zip(&prompts)
        .map(|(at, prompt)| answer(plain.generate(request(at, prompt))).0)
        .collect();
    let (mut steps, mut decoded) = (0, 0);
    for (at, prompt) in prompts.iter().enumerate() {
        let (tokens, ending) = answer(drafting.generate(request(at, prompt)));
        assert_eq!(tokens, expected[at], "prompt {at}");
        let drafts = ending.drafts.unwrap();
        assert_eq!(drafts.steps + drafts.accepted_tokens + 1, ending.generated);
        (steps, decoded) = (steps + drafts.steps, decoded + ending.generated - 1);
    }
    let a_step = f64::from(decoded) / f64::from(steps);
    println!("{a_step:.2} tokens a step");
    assert!(a_step > 1.3, "{a_step}");
    // All at once, while some give up.
    let crowd: Vec<Generation> = (0..)
        .zip(&prompts)
        .map(|(at, prompt)| {
            if at % 5 == 0 {
                drop(drafting.generate(request(at, prompt)));
            }
            drafting.generate(request(at, prompt))
        })
        .collect();
    for (at, generation) in crowd.into_iter().enumerate() {
        assert_eq!(answer(generation).0, expected[at], "prompt {at} in a crowd");
    }
}

#[test]
fn int8_answers_are_the_same() {
    check(WeightForm::W8A16, "host-cpu");
}

#[test]
fn f32_answers_are_the_same() {
    check(WeightForm::F32, "host-cpu-f32");
}
