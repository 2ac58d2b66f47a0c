//! A pair of unlike devices: a thread of the CPU and a GPU, by the solver's cuts, by fixed shares, and each alone.

use super::CHUNK_TOKENS;
use super::machines::{Machine, Shape};
use super::measure::{Decoding, Kernel, Measured, in_turn};
use super::report::Report;
use crate::goal::Goal;
use crate::statistics;
use anyhow::{Context, Result};
use heg_runtime::Loaded;
use heg_runtime::exec::{Partition, WorkItem};
use heg_spec::{Cut, CutProduct, Side};
use xtask::workspace::note;

/// Shares of products that the GPU is given, in this many parts.
pub(super) const PARTS: u32 = 32;

/// Runs in which the solver learns what it needs. Chosen: ratios follow within some ten.
pub(super) const LEARNING: usize = 24;

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

impl OnMachine for Decoding {
    fn machine(&self) -> &Machine {
        &self.machine
    }
}

/// The last kernel of a layer over a chunk of a prompt, and decode steps.
pub(super) fn pair(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    let kernel = |shape| Kernel::new(Machine::new(loaded, shape)?, CHUNK_TOKENS);
    compare(
        &format!("ffn of {CHUNK_TOKENS} tokens"),
        &kernel,
        rounds,
        report,
    )?;
    let decoding = |shape| Decoding::new(Machine::new(loaded, shape)?);
    compare("decode", &decoding, rounds, report)
}

fn compare<M: OnMachine>(
    what: &str,
    make: &dyn Fn(Shape) -> Result<M>,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    let shapes = [Shape::GpuPair, Shape::GpuPair, Shape::one(1), Shape::Gpu];
    let mut all = shapes.into_iter().map(make).collect::<Result<Vec<_>>>()?;
    for _ in 0..LEARNING {
        all[0].run_ms()?;
    }
    let share = best_share(&mut all[1], rounds)?;
    let looks = |all: &[M]| {
        (
            all[0].machine().hand_overs(),
            all[0].machine().hand_overs_of_gpu(),
        )
    };
    let before = looks(&all);
    let [solver, fixed, cpu, gpu] = in_turn(&mut all, rounds)?;
    let after = looks(&all);
    let line = report.of(what, "CPU and GPU", solver);
    let best = format!("{share} of {PARTS} parts on the GPU");
    report.add(line.beside(&best, fixed, [Goal::AtLeast(0.97)]));
    report.add(line.beside("the CPU alone", cpu, [Goal::AtLeast(0.97)]));
    report.add(line.beside("the GPU alone", gpu, [Goal::AtLeast(0.97)]));
    report.hand_overs(what, before.0, after.0);
    report.hand_overs(&format!("{what}, way of the GPU"), before.1, after.1);
    let pair = all[0].machine().pair();
    let passes = pair.map_or(0, |pair| pair.partner_passes());
    note(format!("{what}: {passes} passes of the GPU alone"));
    Ok(())
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
