//! Prompts whose greedy answers no rounding of f16 changes: at each token the best logit is ahead by far.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use heg_runtime::exec::{Duty, Executor, ExecutorOptions};
use heg_sched::{Logits, chunks};
use heg_tests::soft_npu::soft_npu_or_skip;
use heg_tests::{Seeded, executor};

use super::{Machine, Scene, WeightBits, inside};
use crate::world::{ANSWER_TOKENS, Reference};

/// The least distance of the best logit to the next, as a share of their deviation. Chosen: twice what rounding may move
/// it by.
const MARGIN_MIN: f32 = 0.12;

/// The most that the rounding of one device moves such a distance. Measured: 0.05 with weights of four bits.
const MOVED_MAX: f32 = 0.06;

/// Lengths of prompts.
const LENGTHS: [usize; 8] = [3, 40, 17, 70, 33, 100, 9, 55];

/// A prompt of each length, with the answer of a CPU in f32, for the only model of a process.
pub(super) fn references(bits: WeightBits) -> &'static [Reference] {
    static KNOWN: OnceLock<Vec<Reference>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let mut executor = executor(bits.bundle(), "host-cpu-f32", 32).unwrap();
        let found = |(at, length): (usize, &usize)| {
            let mut seeds = (at as u64 * 1000)..;
            let clear = seeds.find_map(|seed| clear(&mut executor, prompt(seed, *length)));
            clear.unwrap()
        };
        LENGTHS.iter().enumerate().map(found).collect()
    })
}

fn prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut seeded = Seeded::new(seed);
    (0..length).map(|_| seeded.below(250) as u32).collect()
}

/// The prompt with its answer, if that is clear at each token.
fn clear(executor: &mut Executor, prompt: Vec<u32>) -> Option<Reference> {
    let mut answer = Vec::new();
    let is_answered = along(executor, &prompt, |logits| {
        let (token, margin) = best(logits)?;
        answer.push(token);
        (margin > MARGIN_MIN).then_some(token)
    });
    is_answered.then_some(Reference { prompt, answer })
}

/// Runs a prompt and its answer, each token of which `choose` takes from the logits; returns false if it takes none.
fn along(
    executor: &mut Executor,
    prompt: &[u32],
    mut choose: impl FnMut(&[f32]) -> Option<u32>,
) -> bool {
    let mut sequence = executor.sequence().unwrap();
    let mut next = None;
    for chunk in chunks(prompt.len(), 32) {
        let is_last = chunk.end == prompt.len();
        let logits = match is_last {
            true => Logits::LastRows,
            false => Logits::None,
        };
        let row = executor.prefill(&mut sequence, &prompt[chunk], logits);
        let row = row.unwrap();
        next = is_last.then(|| choose(row)).flatten();
    }
    for _ in 1..ANSWER_TOKENS {
        let Some(token) = next else { return false };
        let row = executor.decode(&mut [&mut sequence], &[token]);
        next = choose(row.unwrap());
    }
    next.is_some()
}

/// The best token, and its distance to the next as a share of the logits' deviation.
fn best(logits: &[f32]) -> Option<(u32, f32)> {
    let mut ranked: Vec<usize> = (0..logits.len()).collect();
    ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let [best, next, ..] = ranked[..] else {
        return None;
    };
    let margin = (logits[best] - logits[next]) / deviation(logits);
    Some((best as u32, margin))
}

fn deviation(logits: &[f32]) -> f32 {
    let count = logits.len() as f32;
    let mean = logits.iter().sum::<f32>() / count;
    (logits.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count).sqrt()
}

/// Whichever device computes a part of a prompt, its answer stays: neither the kernels of the NPU nor those of the CPU that
/// plays the iGPU move a margin by more than half of what there is at least.
#[test]
fn answers_are_as_clear_on_each_device() {
    let test = "npu::asked::answers_are_as_clear_on_each_device";
    let Some((_, scene)) = inside() else {
        if soft_npu_or_skip(test) {
            Scene::all().for_each(|scene| scene.play(test, Duration::from_secs(300), &[]));
        }
        return;
    };
    let options = ExecutorOptions {
        chunk_tokens: 32,
        batch: 2,
        ..ExecutorOptions::default()
    };
    let loader = Arc::new(Machine::TwoLanes.loader(scene.bits.bundle()));
    let of = |duty| Executor::with_duty(Arc::clone(&loader), duty, options).unwrap();
    let mut cpu = executor(scene.bits.bundle(), "host-cpu-f32", 32).unwrap();
    for (duty, mut device) in [Duty::All, Duty::Dynamic].map(|duty| (duty, of(duty))) {
        let mut worst: f32 = 0.0;
        for asked in references(scene.bits) {
            let [exact, found] = [&mut cpu, &mut device].map(|it| margins(it, asked));
            let moved = exact.iter().zip(&found).map(|(a, b)| (a - b).abs());
            worst = moved.fold(worst, f32::max);
        }
        println!("{scene:?}, {duty:?}: margins move by up to {worst}");
        assert!(worst < MOVED_MAX, "{scene:?}, {duty:?}: {worst}");
    }
}

/// The distance of each token of an answer to the best other one.
fn margins(executor: &mut Executor, asked: &Reference) -> Vec<f32> {
    let mut answer = asked.answer.iter();
    let mut margins = Vec::new();
    along(executor, &asked.prompt, |logits| {
        let token = *answer.next()?;
        let own = logits[token as usize];
        let others = logits.iter().enumerate();
        let others = others.filter(|(at, _)| *at != token as usize);
        let other = others.fold(f32::MIN, |most, (_, logit)| most.max(*logit));
        margins.push((own - other) / deviation(logits));
        Some(token)
    });
    margins
}
