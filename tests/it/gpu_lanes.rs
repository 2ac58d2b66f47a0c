//! Lanes of a GPU beside those of the CPU: the same tokens, log probabilities and bits, whichever of them runs a request, and
//! whoever ran its beginning. The device is the one that `HEG_VK_DRIVER` names, or the first that is there.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::gpu::device_or_skip;
use heg_gpu::Fidelity;
use heg_runtime::Loaded;
use heg_runtime::engine::{EndTokens, Engine, EngineOptions, Generation, Request, Update};
use heg_runtime::exec::{Executor, ExecutorOptions, Sequence, summary};
use heg_sched::{Class, Finish, Logits};
use heg_spec::{WeightForm, shipped};
use heg_tests::{Workbench, executor, fixture, skipped};

const CHUNK_TOKENS: usize = 32;
const ANSWER_TOKENS: u32 = 12;

/// Returns whether there is a device with the bits of CPU programs; notes the reason if there is none. A process probes
/// the device for it once.
pub(crate) fn gpu_or_skip(test: &str) -> bool {
    static FOUND: OnceLock<Option<Fidelity>> = OnceLock::new();
    let found = FOUND.get_or_init(|| device_or_skip(test).map(|it| it.fidelity().clone()));
    let reason = match found {
        Some(Fidelity::Equal) => return true,
        Some(Fidelity::Close { reason }) => reason,
        // This test's own note.
        None => return device_or_skip(test).is_some(),
    };
    let required = std::env::var_os("HEG_REQUIRE_GPU").is_some();
    assert!(!required, "{test}: {reason}");
    skipped(&format!("{test}: {reason}"));
    false
}

fn bundle(workbench: &Workbench, change: impl FnOnce(&mut heg_spec::ModelSpec)) -> PathBuf {
    let compiled = workbench.compile(&fixture("tiny-agent"), "model", change);
    compiled.unwrap().0
}

/// Logits of two sequences, as bits: prompts in chunks, steps side by side and alone, and one that goes back.
fn bits(executor: &mut Executor) -> Vec<u32> {
    let mut all = Vec::new();
    let mut add = |logits: &mut [f32]| all.extend(logits.iter().map(|logit| logit.to_bits()));
    let prompt: Vec<u32> = (0..70).map(|at| 5 + at * at % 200).collect();
    let (mut long, mut short) = (executor.sequence().unwrap(), executor.sequence().unwrap());
    let mut read = |sequence: &mut Sequence, tokens: &[u32], add: &mut dyn FnMut(&mut [f32])| {
        for chunk in tokens.chunks(CHUNK_TOKENS) {
            add(executor.prefill(sequence, chunk, Logits::LastRows).unwrap());
        }
    };
    read(&mut long, &prompt, &mut add);
    read(&mut short, &prompt[..9], &mut add);
    for token in 7..12 {
        let both = &mut [&mut long, &mut short];
        add(executor.decode(both, &[token, token + 1]).unwrap());
        add(executor.decode(&mut [&mut short], &[token + 2]).unwrap());
        if token == 9 {
            long.truncate(60);
        }
    }
    all
}

#[test]
fn an_executor_has_the_bits_of_the_cpu() {
    if !gpu_or_skip("an_executor_has_the_bits_of_the_cpu") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, |_| ());
    let run = |soc| {
        let mut executor = executor(&bundle, soc, CHUNK_TOKENS).unwrap();
        let bits = bits(&mut executor);
        assert_eq!(summary(executor.descents().get()), [""; 0], "{soc}");
        bits
    };
    let expected = run("host-cpu");
    assert!(run("host-gpu") == expected);
    assert!(run("host-cpu-gpu") == expected);
}

/// Prompts that share their beginning, or do not.
fn prompts() -> Vec<Vec<u32>> {
    let prompt = |at: u32| (0..20 + 17 * at).map(move |row| 3 + (row * 37 + at % 2) % 500);
    (0..4).map(|at| prompt(at).collect()).collect()
}

/// Answers of requests that come all at once, each with the log probabilities of its tokens, as bits.
fn answers(engine: &Engine, what: &str) -> Vec<Vec<(u32, u64)>> {
    engine.wait_ready().unwrap();
    let request = |prompt: Vec<u32>| Request {
        tokens_max: ANSWER_TOKENS,
        end_tokens: EndTokens::Ignored,
        log_probs: Some(0),
        ..Request::new(Class::Reactive, prompt)
    };
    let prompts = prompts().into_iter();
    let generations: Vec<_> = prompts
        .map(|prompt| engine.generate(request(prompt)))
        .collect();
    let answer = |mut generation: Generation| {
        let mut tokens = Vec::new();
        loop {
            match generation.next_within(Duration::from_secs(120)).unwrap() {
                Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => {}
                Update::Token { id, log_probs, .. } => {
                    let own = log_probs.map_or(0, |probs| probs.token.log_probability.to_bits());
                    tokens.push((id, own));
                }
                Update::Finished(ending) => {
                    assert_eq!(
                        ending.finish,
                        Finish::Complete,
                        "{what}: {:?}",
                        ending.error
                    );
                    return tokens;
                }
            }
        }
    };
    generations.into_iter().map(answer).collect()
}

fn serving(bundle: &Path, soc: &str, policy: &str) -> Engine {
    let loaded = Loaded::open(bundle).unwrap();
    let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: CHUNK_TOKENS,
            ..ExecutorOptions::default()
        },
        ..EngineOptions::default()
    };
    Engine::start(loader, shipped::policy(policy).unwrap(), options).unwrap()
}

#[test]
fn requests_pass_between_lanes() {
    if !gpu_or_skip("requests_pass_between_lanes") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, |_| ());
    let expected = answers(
        &serving(&bundle, "host-cpu", "agent-xpu-one-device"),
        "host-cpu",
    );
    for (soc, policy) in [
        ("host-gpu", "agent-xpu-one-device"),
        ("host-gpu", "igpu-continuous-batching"),
        ("host-cpu-gpu", "agent-xpu"),
        ("host-cpu-gpu", "sd-npu"),
    ] {
        let name = format!("{soc}, {policy}");
        assert_eq!(
            answers(&serving(&bundle, soc, policy), &name),
            expected,
            "{name}"
        );
    }
}

#[test]
fn a_machine_without_the_gpu_says_so_and_answers() {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, |spec| spec.weights = WeightForm::W8A16);
    let mut soc = shipped::soc("host-gpu").unwrap();
    for gpu in soc
        .devices
        .iter_mut()
        .filter_map(|device| device.gpu.as_mut())
    {
        gpu.name = Some("no such device".to_owned());
    }
    let loaded = Loaded::open(&bundle).unwrap();
    let options = ExecutorOptions {
        chunk_tokens: CHUNK_TOKENS,
        batch: 8,
        ..ExecutorOptions::default()
    };
    let mut fallen = Executor::new(loaded.loader(&soc).unwrap(), options).unwrap();
    let found = bits(&mut fallen);
    let said = summary(fallen.descents().get());
    assert_eq!(said.len(), 1, "{said:?}");
    let [line] = said.as_slice() else { return };
    let expected = "GPU program -> CPU as igpu program: the device cannot be used: ";
    assert!(line.contains(expected), "{line}");
    assert!(found == bits(&mut executor(&bundle, "host-cpu", CHUNK_TOKENS).unwrap()));
}
