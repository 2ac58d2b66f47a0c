//! Prompts whose greedy answers no rounding of f16 changes: at each token the best logit is ahead by far.

use std::sync::OnceLock;

use heg_runtime::exec::Executor;
use heg_sched::{Logits, chunks};
use heg_tests::{Seeded, executor};

use super::WeightBits;
use crate::world::{ANSWER_TOKENS, Reference};

/// The least distance of the best logit to the next, as a share of their deviation. Chosen: the forms' rounding moves
/// logits of this model by less than a tenth of it.
const MARGIN_MIN: f32 = 0.08;

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
    let mut sequence = executor.sequence().unwrap();
    let mut answer = Vec::new();
    let mut next = None;
    for chunk in chunks(prompt.len(), 32) {
        let logits = match chunk.end == prompt.len() {
            true => Logits::LastRows,
            false => Logits::None,
        };
        let row = executor.prefill(&mut sequence, &prompt[chunk], logits);
        next = clear_best(row.unwrap());
    }
    loop {
        let token = next?;
        answer.push(token);
        if answer.len() == ANSWER_TOKENS as usize {
            return Some(Reference { prompt, answer });
        }
        let row = executor.decode(&mut [&mut sequence], &[token]);
        next = clear_best(row.unwrap());
    }
}

/// The best token, if it is the best by far.
fn clear_best(logits: &[f32]) -> Option<u32> {
    let count = logits.len() as f32;
    let mean = logits.iter().sum::<f32>() / count;
    let variance = logits.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count;
    let mut ranked: Vec<usize> = (0..logits.len()).collect();
    ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let [best, next, ..] = ranked[..] else {
        return None;
    };
    let is_clear = logits[best] - logits[next] > MARGIN_MIN * variance.sqrt();
    is_clear.then_some(best as u32)
}
