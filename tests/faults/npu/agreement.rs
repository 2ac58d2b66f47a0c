//! Tokens of an NPU's forms, whose ports are f16, beside those of CPU programs in f32: trained models in 8 and 4 bits, and
//! every family of the golden models.
//!
//! Each token is held against the CPU's behind the same tokens, as one that differs changes all that follow. An ordinary
//! run has some prompts of the tiny agent; `HEG_FULL` has fifty of each trained model.

use std::path::PathBuf;
use std::time::Duration;

use heg_runtime::Loaded;
use heg_runtime::exec::{Descent, Executor, ExecutorOptions, Reason, Sequence};
use heg_sched::{Logits, chunks};
use heg_spec::WeightForm;
use heg_tests::questions::{agent_30m, questions};
use heg_tests::soft_npu::{NPU_SOCS, SoftNpu, soft_npu_or_skip};
use heg_tests::{FAMILIES, executor, fetched, fixture, four_bits, golden, greedy};
use heg_text::Special;

use super::{FOLDER, Machine, compiled};
use crate::scene::play;

/// The number of prompts of the trained models, and of tokens of an answer.
const PROMPTS: usize = 50;
const TOKENS: usize = 8;

/// Share of tokens that are the CPU's, at least.
const AGREES_MIN: f64 = 0.98;

/// Tokens that two devices gave behind the same text.
#[derive(Debug, Default)]
struct Agreement {
    tokens: usize,
    /// Tokens that differ, with the distance of the CPU's best logit to that of the NPU's token, as a share of the
    /// deviation of its logits.
    differ: Vec<f32>,
    answers: usize,
    /// Answers that are the same from the first token to the last.
    whole: usize,
    /// Tokens before the first one of an answer that differs.
    before: usize,
}

impl Agreement {
    fn share(&self) -> f64 {
        1.0 - self.differ.len() as f64 / self.tokens.max(1) as f64
    }

    /// Adds an answer: the CPU's, and behind each of its tokens what the NPU says.
    fn ask(&mut self, [npu, cpu]: [&mut Executor; 2], prompt: &[u32]) {
        let mut sequences = [npu.sequence().unwrap(), cpu.sequence().unwrap()];
        let [of_npu, of_cpu] = &mut sequences;
        let mut logits = [
            read(npu, of_npu, prompt).to_vec(),
            read(cpu, of_cpu, prompt).to_vec(),
        ];
        let mut is_same = true;
        for at in 0..TOKENS {
            let [found, expected] = [best(&logits[0]), best(&logits[1])];
            self.tokens += 1;
            if found != expected {
                let behind = logits[1][expected] - logits[1][found];
                self.differ.push(behind / deviation(&logits[1]));
                is_same = false;
            }
            self.before += usize::from(is_same);
            if at + 1 < TOKENS {
                let token = [expected as u32];
                logits = [
                    npu.decode(&mut [of_npu], &token).unwrap().to_vec(),
                    cpu.decode(&mut [of_cpu], &token).unwrap().to_vec(),
                ];
            }
        }
        self.answers += 1;
        self.whole += usize::from(is_same);
    }
}

fn read<'e>(executor: &'e mut Executor, sequence: &mut Sequence, prompt: &[u32]) -> &'e [f32] {
    let all: Vec<_> = chunks(prompt.len(), 32).collect();
    let (last, first) = all.split_last().unwrap();
    for chunk in first {
        let tokens = &prompt[chunk.clone()];
        executor.prefill(sequence, tokens, Logits::None).unwrap();
    }
    let tokens = &prompt[last.clone()];
    executor
        .prefill(sequence, tokens, Logits::LastRows)
        .unwrap()
}

fn best(logits: &[f32]) -> usize {
    let all = logits.iter().enumerate();
    all.max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
}

fn deviation(logits: &[f32]) -> f32 {
    let count = logits.len() as f32;
    let mean = logits.iter().sum::<f32>() / count;
    (logits.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count).sqrt()
}

/// A trained model in a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trained {
    TinyAgent8,
    TinyAgent4,
    Agent8,
    Agent4,
    SmolLm,
}

impl Trained {
    const ALL: [Self; 5] = [
        Self::TinyAgent8,
        Self::TinyAgent4,
        Self::SmolLm,
        Self::Agent8,
        Self::Agent4,
    ];

    fn model(self) -> Option<PathBuf> {
        match self {
            Self::TinyAgent8 | Self::TinyAgent4 => Some(fixture("tiny-agent")),
            Self::Agent8 | Self::Agent4 => agent_30m("agent-30m over a software NPU"),
            Self::SmolLm => fetched::smollm2("SmolLM2 over a software NPU"),
        }
    }

    pub(super) fn bundle(self) -> Option<PathBuf> {
        let weights = match self {
            Self::TinyAgent8 | Self::Agent8 | Self::SmolLm => WeightForm::W8A16,
            Self::TinyAgent4 | Self::Agent4 => four_bits(false),
        };
        let name = format!("agrees-{self:?}").to_lowercase();
        Some(compiled(&self.model()?, &name, weights, &[PLATFORM]))
    }

    pub(super) fn prompts(self) -> Vec<Vec<u32>> {
        let model = self.model().unwrap();
        if self == Self::SmolLm {
            let cases = golden::cases_of(&fixture("smollm2/greedy.json")).unwrap();
            let all = cases.into_iter().map(|case| case.input_ids);
            let (short, long): (Vec<_>, Vec<_>) = all.partition(|ids| ids.len() < 100);
            let parts = long.iter().flat_map(|ids| {
                let ends = [40, 70, 100];
                ends.map(|end| ids[..end].to_vec())
            });
            return short.into_iter().chain(parts).collect();
        }
        let bundle = self.bundle().unwrap();
        let tokenizer = Loaded::open(&bundle).unwrap().tokenizer().unwrap();
        let questions = questions(&model).unwrap().into_iter();
        let encoded = questions.map(|it| tokenizer.encode(&it.prompt, Special::AsWritten));
        let encoded = encoded.map(Result::unwrap);
        encoded
            .filter(|ids| ids.len() < 200)
            .take(PROMPTS)
            .collect()
    }
}

/// The NPU of these scenes.
const PLATFORM: u32 = NPU_SOCS[1].platform;

/// The model of a scene, by its place among all.
const MODEL: &str = "HEG_TEST_NPU_MODEL";

/// Plays a scene with bundles for the NPU.
pub(super) fn over(test: &str, bundles: &[PathBuf], number: usize) {
    let world = SoftNpu::new();
    let names: Vec<String> = bundles.iter().map(|it| it.display().to_string()).collect();
    play(test, world.folder(), Duration::from_secs(3600), |command| {
        let platform = PLATFORM.to_string();
        let bundles = PathBuf::from(names.join(","));
        world.enter(command, &bundles, &[("PLATFORM", &platform)]);
        command.env(FOLDER, world.folder());
        command.env(MODEL, number.to_string());
    });
}

#[test]
fn trained_models_give_the_tokens_of_a_cpu() {
    let test = "npu::agreement::trained_models_give_the_tokens_of_a_cpu";
    let is_full = std::env::var_os("HEG_FULL").is_some();
    if let Some(number) = std::env::var_os(MODEL) {
        let number: usize = number.to_str().unwrap().parse().unwrap();
        return hold(Trained::ALL[number], if is_full { PROMPTS } else { 5 });
    }
    if !soft_npu_or_skip(test) {
        return;
    }
    let models = if is_full { 0..Trained::ALL.len() } else { 0..2 };
    for number in models {
        if let Some(bundle) = Trained::ALL[number].bundle() {
            over(test, &[bundle], number);
        }
    }
}

fn hold(trained: Trained, prompts: usize) {
    let bundle = trained.bundle().unwrap();
    let options = ExecutorOptions {
        chunk_tokens: 32,
        batch: 2,
        ..ExecutorOptions::default()
    };
    let mut npu = Executor::new(Machine::Alone.loader(&bundle), options).unwrap();
    let mut cpu = executor(&bundle, "host-cpu-f32", 32).unwrap();
    let mut agreement = Agreement::default();
    for prompt in trained.prompts().iter().take(prompts) {
        agreement.ask([&mut npu, &mut cpu], prompt);
    }
    println!("{trained:?}: {} agree, {agreement:?}", agreement.share());
    // Contexts beyond the bucket are the CPU's.
    let is_size = |it: &Descent| matches!(it.reason, Reason::TooSmall { .. });
    let descents = npu.descents();
    assert!(descents.get().iter().all(is_size), "{:?}", descents.get());
    assert_eq!(agreement.answers, prompts);
    assert!(agreement.share() >= AGREES_MIN, "{trained:?}");
}

/// Every family over the NPU: known answers are right, or its form would be passed over, and so are the reference's tokens.
#[test]
fn every_family_gives_the_tokens_of_its_reference() {
    let test = "npu::agreement::every_family_gives_the_tokens_of_its_reference";
    let is_inside = std::env::var_os(FOLDER).is_some();
    if !is_inside && !soft_npu_or_skip(test) {
        return;
    }
    let bundles = FAMILIES.map(|family| {
        let model = fixture(&format!("golden/{family}"));
        compiled(
            &model,
            &format!("golden-{family}"),
            WeightForm::F16,
            &[PLATFORM],
        )
    });
    if !is_inside {
        return over(test, &bundles, 0);
    }
    let options = ExecutorOptions {
        chunk_tokens: 32,
        batch: 2,
        ..ExecutorOptions::default()
    };
    for (family, bundle) in FAMILIES.into_iter().zip(&bundles) {
        let mut npu = Executor::new(Machine::Alone.loader(bundle), options).unwrap();
        for case in golden::family(family).unwrap() {
            let mut sequence = npu.sequence().unwrap();
            let count = case.greedy_ids.len();
            let found = greedy(&mut npu, &mut sequence, &case.input_ids, count).unwrap();
            let name = format!("{family}, prompt of {}", case.input_ids.len());
            assert_eq!(found, case.greedy_ids, "{name}");
        }
        assert_eq!(npu.descents().get(), [], "{family}");
    }
}
