//! The same question gets the same answer however busy the machine is: CPU programs give the same logits, bit for bit,
//! for any chunks, batches, numbers of threads and instruction sets; on the engine too, for requests that were
//! preempted, and for KV caches that were reused, were on flash, were kept by an earlier process, or come with the bundle.

mod baked;
mod kept;
mod narrow;
mod pair;
mod served;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use heg_artifacts::SectionId;
use heg_runtime::Loaded;
use heg_runtime::exec::{Executor, ExecutorOptions, Sequence};
use heg_sched::{Logits, chunks};
use heg_spec::{Activations, GroupColumns, Isa, ModelSpec, Soc, WeightForm, shipped};
use heg_tests::{Seeded, Workbench, fetched, fixture};
use heg_text::most_likely;

/// The configuration of a computation.
#[derive(Debug, Clone, Copy)]
struct Way {
    threads: u32,
    isa: Isa,
    chunk_tokens: usize,
    /// Number of sequences that are decoded together.
    batch: usize,
}

const PLAIN: Way = Way {
    threads: 1,
    isa: Isa::Avx2,
    chunk_tokens: 256,
    batch: 1,
};

/// Configurations that differ from the plain one in everything.
const WAYS: [Way; 5] = [
    Way {
        threads: 2,
        isa: Isa::Avx512Vnni,
        chunk_tokens: 1,
        batch: 2,
    },
    Way {
        threads: 2,
        isa: Isa::AvxVnni,
        chunk_tokens: 7,
        batch: 3,
    },
    Way {
        threads: 1,
        isa: Isa::Avx512Vnni,
        chunk_tokens: 32,
        batch: 8,
    },
    Way {
        threads: 2,
        isa: Isa::Avx512Vnni,
        chunk_tokens: 256,
        batch: 32,
    },
    Way {
        threads: 1,
        isa: Isa::Portable,
        chunk_tokens: 64,
        batch: 20,
    },
];

fn soc(way: Way, activations: Activations) -> Soc {
    let mut soc = shipped::soc("host-cpu").unwrap();
    for programs in soc
        .devices
        .iter_mut()
        .filter_map(|device| device.programs.as_mut())
    {
        programs.threads = NonZeroU32::new(way.threads);
        programs.isa = Some(way.isa);
        programs.activations = activations;
    }
    soc
}

/// A function that hashes the logits before a token.
type Digest = fn(&[f32], u32) -> SectionId;

fn bits_of(logits: &[f32], _: u32) -> SectionId {
    let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    SectionId::of(&bytes)
}

/// The tokens that follow a prompt, and hashes of the logits before each.
#[derive(Debug, Clone, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    bits: Vec<SectionId>,
}

/// A prompt that is being answered.
struct Asked {
    sequence: Sequence,
    answer: Answer,
    digest: Digest,
}

impl Asked {
    fn take(&mut self, logits: &[f32]) {
        let best = most_likely(logits);
        self.answer.bits.push((self.digest)(logits, best));
        self.answer.tokens.push(best);
    }

    fn last(&self) -> u32 {
        self.answer.tokens[self.answer.tokens.len() - 1]
    }
}

/// Answers all prompts with `steps` tokens, on a new executor.
fn answers(
    bundle: &Path,
    prompts: &[Vec<u32>],
    steps: usize,
    (way, activations, digest): (Way, Activations, Digest),
) -> Vec<Answer> {
    let options = ExecutorOptions {
        chunk_tokens: way.chunk_tokens,
        batch: way.batch,
        ..ExecutorOptions::default()
    };
    let loaded = Loaded::open(bundle).unwrap();
    let mut executor = loaded.executor(&soc(way, activations), options).unwrap();
    answers_of(&mut executor, prompts, steps, digest)
}

/// Answers all prompts on an existing executor.
fn answers_of(
    executor: &mut Executor,
    prompts: &[Vec<u32>],
    steps: usize,
    digest: Digest,
) -> Vec<Answer> {
    let mut asked: Vec<Asked> = prompts
        .iter()
        .map(|prompt| prefilled(executor, prompt, digest))
        .collect();
    for _ in 1..steps {
        for together in asked.chunks_mut(executor.options().batch) {
            decode(executor, together);
        }
    }
    asked.into_iter().map(|one| one.answer).collect()
}

fn prefilled(executor: &mut Executor, prompt: &[u32], digest: Digest) -> Asked {
    let mut asked = Asked {
        sequence: executor.sequence().unwrap(),
        answer: Answer::default(),
        digest,
    };
    for chunk in chunks(prompt.len(), executor.options().chunk_tokens) {
        let is_last = chunk.end == prompt.len();
        let tokens = &prompt[chunk];
        let sequence = &mut asked.sequence;
        let logits = executor
            .prefill(sequence, tokens, Logits::LastRows)
            .unwrap();
        if is_last {
            let logits = logits.to_vec();
            asked.take(&logits);
        }
    }
    asked
}

fn decode(executor: &mut Executor, together: &mut [Asked]) {
    let tokens: Vec<u32> = together.iter().map(Asked::last).collect();
    let mut sequences: Vec<&mut Sequence> =
        together.iter_mut().map(|one| &mut one.sequence).collect();
    let logits = executor.decode(&mut sequences, &tokens).unwrap().to_vec();
    let width = logits.len() / tokens.len();
    for (one, logits) in together.iter_mut().zip(logits.chunks(width)) {
        one.take(logits);
    }
}

/// Compares all configurations with the plain one; the portable form answers only some prompts, because it is slow.
fn check(bundle: &Path, prompts: &[Vec<u32>], steps: usize, activations: Activations) {
    let expected = answers(bundle, prompts, steps, (PLAIN, activations, bits_of));
    for way in WAYS.into_iter().filter(|way| way.isa.is_available()) {
        let count = match way.isa {
            Isa::Portable => prompts.len().min(4),
            _ => prompts.len(),
        };
        let run = (way, activations, bits_of as Digest);
        let found = answers(bundle, &prompts[..count], steps, run);
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{way:?}, prompt {index}");
        }
    }
}

fn tiny_agent() -> (Workbench, PathBuf) {
    tiny_agent_as(WeightForm::W8A16)
}

fn tiny_agent_as(form: WeightForm) -> (Workbench, PathBuf) {
    let workbench = Workbench::new().unwrap();
    let change = |spec: &mut ModelSpec| spec.weights = form;
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", change);
    let bundle = compiled.unwrap().0;
    (workbench, bundle)
}

/// Prompts of many lengths, cut one after the other from a sequence of tokens.
fn prompts(count: usize, vocab: usize) -> Vec<Vec<u32>> {
    let mut noise = Seeded::new(7);
    let length = |index: usize| 1 + index * 29 % 190;
    (0..count)
        .map(|index| {
            let token = |_| noise.below(vocab) as u32;
            (0..length(index)).map(token).collect()
        })
        .collect()
}

#[test]
fn tiny_agent_says_the_same_in_any_company() {
    let (_workbench, bundle) = tiny_agent();
    check(&bundle, &prompts(count(200, 66), 2048), 6, Activations::I8);
}

#[test]
fn tiny_agent_says_the_same_with_finer_activations() {
    let (_workbench, bundle) = tiny_agent();
    for activations in [Activations::I16, Activations::F32] {
        check(&bundle, &prompts(count(24, 6), 2048), 4, activations);
    }
}

#[test]
fn tiny_agent_says_the_same_with_4_bit_weights() {
    let [small, middle, _] = GroupColumns::ALL;
    for (group, symmetric, activations) in [
        (middle, false, Activations::I8),
        (small, true, Activations::I8),
        (small, false, Activations::I16),
        (middle, true, Activations::F32),
    ] {
        let (_workbench, bundle) = tiny_agent_as(WeightForm::W4A16 { group, symmetric });
        check(&bundle, &prompts(count(24, 6), 2048), 4, activations);
    }
}

/// SmolLM2 as fetched by the demo; `None` if it is missing.
fn smollm2() -> Option<(Workbench, PathBuf)> {
    smollm2_as(WeightForm::W8A16)
}

fn smollm2_as(form: WeightForm) -> Option<(Workbench, PathBuf)> {
    let file = fetched::smollm2("bits of a trained model")?;
    let workbench = Workbench::new().unwrap();
    let change = |spec: &mut ModelSpec| spec.weights = form;
    let bundle = workbench.compile(&file, "smollm2", change).unwrap().0;
    Some((workbench, bundle))
}

/// `all` with `HEG_FULL=1`, which takes minutes, else `part`.
fn count(all: usize, part: usize) -> usize {
    match std::env::var_os("HEG_FULL") {
        Some(_) => all,
        None => part,
    }
}

#[test]
fn smollm2_says_the_same_in_any_company() {
    if let Some((_workbench, bundle)) = smollm2() {
        let prompts = prompts(count(50, 2), SMOLLM2_VOCAB);
        check(&bundle, &prompts, 4, Activations::I8);
    }
}

#[test]
fn smollm2_says_the_same_with_4_bit_weights() {
    let group = GroupColumns::SMALLEST;
    let form = WeightForm::W4A16 {
        group,
        symmetric: false,
    };
    if let Some((_workbench, bundle)) = smollm2_as(form) {
        let prompts = prompts(count(50, 2), SMOLLM2_VOCAB);
        check(&bundle, &prompts, 3, Activations::I8);
    }
}

const SMOLLM2_VOCAB: usize = 49_000;
