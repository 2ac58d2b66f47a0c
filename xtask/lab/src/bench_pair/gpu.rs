//! A pair of unlike devices: a thread of the CPU and a GPU, by the solver's cuts, by fixed shares, and each alone.

use super::CHUNK_TOKENS;
use super::machines::{Machine, Shape};
use super::measure::{Decoding, Kernel, Measured, PROMPT_TOKENS, Prefilling, in_turn};
use super::report::Report;
use crate::goal::Goal;
use crate::statistics;
use anyhow::{Context, Result};
use heg_runtime::Loaded;
use heg_runtime::exec::{HandOvers, Partition, WorkItem};
use heg_spec::{Cut, CutProduct, Side};
use xtask::workspace::note;

/// Shares of products that the GPU is given, in this many parts.
pub(super) const PARTS: u32 = 32;

/// Runs in which the solver learns what it needs. Chosen: ratios follow within some ten.
pub(super) const LEARNING: usize = 24;

/// Measurements of the sides of a comparison in each round. Chosen: medians of nine of the same machine are up to five
/// percent apart, and three are to be told.
pub(super) const FINE: usize = 8;

/// Every product by a fixed share of its rows.
struct AtShare(u32);

impl Partition for AtShare {
    fn cut(&self, work: WorkItem) -> Cut {
        match work.product {
            Some(CutProduct::Attention) | None => Cut::Whole(Side::Second),
            Some(_) => Cut::Rows {
                first: (work.rows as u32 * self.0).div_ceil(PARTS),
            },
        }
    }
}

/// Something measured on a machine that is still there.
pub(super) trait OnMachine: Measured {
    fn machine(&self) -> &Machine;
}

impl OnMachine for Kernel {
    fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl OnMachine for Prefilling {
    fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl OnMachine for Decoding {
    fn machine(&self) -> &Machine {
        &self.machine
    }
}

/// The last kernel of a layer over a chunk of a prompt and decode steps beside the best of fixed shares; prompts and decode
/// steps, which a pair may leave to one of its sides, beside each side alone.
pub(super) fn pair(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    let machine = |shape| Machine::new(loaded, shape);
    let kernel = |shape| Kernel::new(machine(shape)?, CHUNK_TOKENS);
    let what = format!("ffn of {CHUNK_TOKENS} tokens");
    beside_shares(&what, &kernel, rounds, report)?;
    let decoding = |shape| Decoding::new(machine(shape)?);
    beside_shares("decode", &decoding, rounds, report)?;
    let prefilling = |shape| Prefilling::new(machine(shape)?);
    let what = format!("prompt of {PROMPT_TOKENS} tokens");
    beside_sides(&what, &prefilling, rounds, report)?;
    beside_sides("decode", &decoding, rounds, report)
}

/// The solver's cuts beside the best of fixed shares. There are two machines of each, since rows and caches of one lie where
/// it found memory: less than their difference says nothing.
fn beside_shares<M: OnMachine>(
    what: &str,
    make: &dyn Fn(Shape) -> Result<M>,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    let pair = || make(Shape::GpuPair);
    let mut all = [pair()?, pair()?, pair()?, pair()?];
    learn(&mut all[..2])?;
    // Where the solver gives the GPU nothing, only fixed shares are handed over.
    let before = hand_overs(&all[2]);
    let share = best_share(&mut all[2], rounds)?;
    let after = hand_overs(&all[2]);
    share_by(&all[3], share)?;
    let [solver, again, fixed, twin] = in_turn(&mut all, rounds * FINE)?;
    let best = format!("{share} of {PARTS} parts on the GPU");
    let line = report.of(what, &best, fixed.clone());
    report.add(line.beside("the same again", twin.clone(), []));
    let line = report.of(what, "CPU and GPU", [solver, again].concat());
    let fixed = [fixed, twin].concat();
    report.add(line.beside(&best, fixed, [Goal::AtLeast(0.97)]));
    report.hand_overs(what, before.0, after.0);
    report.hand_overs(&format!("{what}, way of the GPU"), before.1, after.1);
    Ok(())
}

/// A pair beside each of its sides alone.
fn beside_sides<M: OnMachine>(
    what: &str,
    make: &dyn Fn(Shape) -> Result<M>,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    let shapes = [Shape::GpuPair, Shape::one(1), Shape::Gpu];
    let mut all = shapes.into_iter().map(make).collect::<Result<Vec<_>>>()?;
    learn(&mut all[..1])?;
    // A GPU in software takes seconds.
    let [both, _, gpu] = in_turn(&mut all, rounds)?;
    let line = report.of(what, "CPU and GPU", both);
    report.add(line.beside("the GPU alone", gpu, [Goal::AtLeast(0.97)]));
    let [both, cpu] = in_turn(&mut all[..2], rounds * FINE)?;
    let line = report.of(what, "CPU and GPU", both);
    report.add(line.beside("the CPU alone", cpu, [Goal::AtLeast(0.97)]));
    let pair = all[0].machine().pair();
    let passes = pair.map_or(0, |pair| pair.partner_passes());
    note(format!("{what}: {passes} passes of the GPU alone"));
    Ok(())
}

/// Runs machines until their solvers know what they need.
pub(super) fn learn(machines: &mut [impl Measured]) -> Result<()> {
    for _ in 0..LEARNING {
        for machine in &mut *machines {
            machine.run_ms()?;
        }
    }
    Ok(())
}

/// Hand-overs between the sides so far, and the times that parts took beside the partner's work.
pub(super) fn hand_overs(on: &impl OnMachine) -> (Option<HandOvers>, Option<HandOvers>) {
    let machine = on.machine();
    (machine.hand_overs(), machine.hand_overs_of_partner())
}

/// Has a machine share products by the best of all fixed shares; returns it.
pub(super) fn best_share(on: &mut impl OnMachine, rounds: usize) -> Result<u32> {
    let mut best: Option<(f64, u32)> = None;
    for share in 0..=PARTS {
        share_by(on, share)?;
        // The first run has new commands.
        on.run_ms()?;
        let times = (0..rounds.div_ceil(3)).map(|_| on.run_ms());
        let median = statistics::median(&times.collect::<Result<Vec<_>>>()?);
        let found = (median.context("no round")?, share);
        best = Some(best.map_or(found, |best| if found.0 < best.0 { found } else { best }));
    }
    let (_, share) = best.context("no share")?;
    share_by(on, share)?;
    Ok(share)
}

fn share_by(on: &impl OnMachine, share: u32) -> Result<()> {
    let pair = on.machine().pair().context("the machine is no pair")?;
    pair.share_by(Box::new(AtShare(share)));
    Ok(())
}
