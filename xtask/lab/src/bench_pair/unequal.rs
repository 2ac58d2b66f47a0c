//! Sides of unequal speed.

use super::CHUNK_TOKENS;
use super::machines::{Machine, Shape};
use super::measure::{Kernel, Measured, Prompt, in_turn};
use super::report::{Line, Report, median};
use crate::goal::Goal;
use anyhow::{Context, Result};
use heg_runtime::Loaded;
use heg_runtime::exec::{ByShare, BySolver};
use heg_spec::policy::{PairLevel, Synchronisation};

/// The solver's cut beside the best of all, and beside what was predicted.
pub(super) fn cuts(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    for throttle in THROTTLES {
        let machine = Machine::new(loaded, super::FAST.throttled(throttle))?;
        let mut kernel = Kernel::new(machine, CHUNK_TOKENS)?;
        let shares = (0..=SHARES).map(|share| f64::from(share) / f64::from(SHARES));
        let shares: Vec<f64> = shares.collect();
        let mut swept_ms = vec![Vec::new(); shares.len()];
        for _ in 0..rounds.div_ceil(3) {
            for (share, times_ms) in shares.iter().zip(&mut swept_ms) {
                times_ms.push(shared_ms(&mut kernel, *share)?);
            }
        }
        let swept_ms = swept_ms.iter().map(|times_ms| median(times_ms));
        let swept: Vec<(f64, f64)> = shares.into_iter().zip(swept_ms).collect();
        let best = swept.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let (share, _) = *best.context("no cut was measured")?;
        for _ in 0..super::ORDERS_TO_LEARN {
            solved_ms(&mut kernel)?;
        }
        // The least of many medians is a lucky one, so it is measured again beside the solver's.
        let (mut ours, mut best_ms) = (Vec::new(), Vec::new());
        for _ in 0..2 * rounds {
            ours.push(solved_ms(&mut kernel)?);
            best_ms.push(shared_ms(&mut kernel, share)?);
        }
        let what = format!("ffn, second side 1/{throttle} as fast");
        let line = report.of(&what, "solver's cut", ours);
        let beside = format!("best of {} shares, {share:.2},", SHARES + 1);
        report.add(line.beside(&beside, best_ms, [Goal::AtLeast(0.97)]));
        // As the solver takes it to be: what both do in a time adds up.
        if let [(_, second_ms), .., (_, first_ms)] = swept.as_slice() {
            let predicted_ms = first_ms * second_ms / (first_ms + second_ms);
            let goals = [Goal::AtLeast(0.85), Goal::AtMost(1.15)];
            report.add(line.beside("predicted", vec![predicted_ms], goals));
        }
    }
    Ok(())
}

fn shared_ms(kernel: &mut Kernel, share: f64) -> Result<f64> {
    kernel.machine.share_by(Box::new(ByShare::new(share)))?;
    kernel.run_ms()
}

fn solved_ms(kernel: &mut Kernel) -> Result<f64> {
    kernel.machine.share_by(Box::new(BySolver::new(&[])))?;
    kernel.run_ms()
}

/// Whole prompts: products shared, or given to either side.
pub(super) fn levels(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    for throttle in THROTTLES {
        for (tokens, goal) in [(CHUNK_TOKENS, 1.25), (32, 1.3)] {
            let level = |level| Shape::pair(level, Synchronisation::Fast).throttled(throttle);
            let shapes = [level(PairLevel::Tensor), level(PairLevel::Layer)];
            let mut all = Vec::new();
            for machine in shapes.map(|shape| Machine::new(loaded, shape)) {
                all.push(Prompt::new(machine?, tokens)?);
            }
            let [tensor, layer] = in_turn(&mut all, rounds)?;
            let what = format!("prompt of {tokens} tokens, second side 1/{throttle} as fast");
            let line: Line = report.of(&what, "tensor level", tensor);
            report.add(line.beside("layer level", layer, [Goal::AtLeast(goal)]));
        }
    }
    Ok(())
}

/// Times as slow as the first side: half and a quarter of its speed.
const THROTTLES: [u32; 2] = [2, 4];

/// Steps of the exhaustive sweep, in shares of the first side.
const SHARES: u32 = 32;
