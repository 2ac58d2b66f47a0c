//! Switches a model from the kernels of prefill to those of decoding, block by block, while the prompt is computed
//! (sd.npu §3.2).
//!
//! A device whose kernels contain their weights holds a block in one form only: long chunks for the prompt, or short
//! ones for verifying drafts. A block in its short form computes a chunk in several calls. Loads are done one at a
//! time, beside the computation of other blocks. The optimal order and timing of loads is NP-hard (appendix A).

use std::ops::Range;

pub use heg_spec::policy::Switching;

/// A block of consecutive layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwitchedBlock {
    /// Time for one chunk in the long form.
    pub long_us: f64,
    /// Time for one chunk in the short form: all its calls.
    pub short_us: f64,
    /// Time to load the short form.
    pub load_us: f64,
}

/// One load of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The block that is loaded.
    pub block: usize,
    /// The step that it begins with, as soon as the load before it has ended: step s computes block s mod N of chunk
    /// s div N. A step after the last one stands for the end of the prompt.
    pub step: usize,
}

/// The times of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwitchTimes {
    /// The time at which the prompt is computed.
    pub prefill_us: f64,
    /// The time at which every block is in its short form.
    pub switched_us: f64,
}

impl SwitchTimes {
    /// Returns the time at which decoding can begin.
    pub fn ready_us(self) -> f64 {
        self.prefill_us.max(self.switched_us)
    }
}

/// Shares of a load that may stay unhidden. 0 is the paper's greedy rule; with few chunks or long loads, waiting a
/// little for a block is better than loading it after the prompt.
const UNHIDDEN: [f64; 5] = [0.0, 0.1, 0.25, 0.5, 1.0];

/// Returns the loads of a prompt of `chunks` chunks, in order: the best of the greedy plans that begin with any step,
/// since blocks in their short form are slower and the best plan begins no sooner than all loads need.
pub fn plan(blocks: &[SwitchedBlock], chunks: usize) -> Vec<Load> {
    let steps = blocks.len() * chunks;
    let begins = (0..=steps).flat_map(|begin| UNHIDDEN.map(|unhidden| (begin, 1.0 - unhidden)));
    let plans = begins.map(|(begin, hidden)| greedy(blocks, begin..steps, hidden));
    let ready_us = |plan: &Vec<Load>| times(blocks, chunks, plan).ready_us();
    let sooner = |a: &Vec<Load>, b: &Vec<Load>| ready_us(a).total_cmp(&ready_us(b));
    plans.min_by(sooner).unwrap_or_default()
}

/// Returns a greedy plan: k* = min { k : T_load(P_j) ≤ Σ T_compute(P_i .. P_i+k−1) } for the last block j that is not
/// switched, and so on from block i + k*. A block that would compute during its load is passed over for the one
/// before it; remaining blocks are loaded after their last computation. Only the share `hidden` of a load counts.
fn greedy(blocks: &[SwitchedBlock], steps: Range<usize>, hidden: f64) -> Vec<Load> {
    let mut loads = Vec::with_capacity(blocks.len());
    let mut is_long = vec![true; blocks.len()];
    let Range {
        start: mut step,
        end: steps,
    } = steps;
    while step < steps {
        let window = |block: usize| {
            let load_us = blocks[block].load_us * hidden;
            let window = hidden_by(blocks, &is_long, step, load_us);
            let end = step + window;
            let computes = (step..end).any(|step| step % blocks.len() == block);
            (!computes && end <= steps).then_some((block, window))
        };
        let mut long = (0..blocks.len()).rev().filter(|block| is_long[*block]);
        match long.find_map(window) {
            Some((block, window)) => {
                loads.push(Load { block, step });
                is_long[block] = false;
                step += window;
            }
            None if is_long.contains(&true) => step += 1,
            None => break,
        }
    }
    let rest = (0..blocks.len()).filter(|block| is_long[*block]);
    loads.extend(rest.map(|block| Load {
        block,
        step: steps - blocks.len() + block + 1,
    }));
    loads.sort_by_key(|load| load.step);
    loads
}

/// Returns the least number of steps, from `step` on, that take as long as a load.
fn hidden_by(blocks: &[SwitchedBlock], is_long: &[bool], step: usize, load_us: f64) -> usize {
    let mut hidden_us = 0.0;
    let mut steps = 0;
    while hidden_us < load_us && steps < 64 * blocks.len() {
        let block = (step + steps) % blocks.len();
        hidden_us += match is_long[block] {
            true => blocks[block].long_us,
            false => blocks[block].short_us,
        };
        steps += 1;
    }
    steps.max(1)
}

/// Returns the times of a plan: the end of its prompt, and of its last load. Computation waits for a block that is
/// being loaded.
pub fn times(blocks: &[SwitchedBlock], chunks: usize, loads: &[Load]) -> SwitchTimes {
    let mut now_us = 0.0_f64;
    let mut loaded_us = 0.0_f64;
    let mut short_from = vec![f64::INFINITY; blocks.len()];
    let mut loads = loads.iter().peekable();
    for step in 0..=blocks.len() * chunks {
        while let Some(load) = loads.next_if(|load| load.step <= step) {
            loaded_us = loaded_us.max(now_us) + blocks[load.block].load_us;
            short_from[load.block] = loaded_us;
        }
        if step < blocks.len() * chunks {
            let block = step % blocks.len();
            now_us = match short_from[block] {
                f64::INFINITY => now_us + blocks[block].long_us,
                from => now_us.max(from) + blocks[block].short_us,
            };
        }
    }
    SwitchTimes {
        prefill_us: now_us,
        switched_us: loaded_us,
    }
}

#[cfg(test)]
mod tests;
