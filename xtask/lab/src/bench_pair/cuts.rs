//! Cuts by measured pieces: two lanes of CPU programs, by the cuts of a profile made for this, by the best of fixed shares, and
//! by speeds of the run.

use super::CHUNK_TOKENS;
use super::gpu::{LEARNING, OnMachine, PARTS, best_share};
use super::machines::{Machine, Shape};
use super::measure::{Decoding, Kernel, in_turn};
use super::report::Report;
use crate::goal::Goal;
use anyhow::{Context, Result, ensure};
use heg_files::OwnFolder;
use heg_profiler::measure::{Profile, measure_pieces};
use heg_runtime::Loaded;
use heg_runtime::profile::file::ProfileFile;
use heg_runtime::profile::{BundlePair, Extent, identities};
use std::time::Duration;

/// Time for pieces of products. Chosen: a quarter of the budget of `heg profile`.
const BUDGET: Duration = Duration::from_secs(22);

/// The last kernel of a layer over a chunk of a prompt, and decode steps.
pub(super) fn pair(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cache = OwnFolder::create(folder.path())?;
    keep_pieces(loaded, &cache)?;
    let kernel = |machine| Kernel::new(machine, CHUNK_TOKENS);
    let what = format!("ffn of {CHUNK_TOKENS} tokens");
    compare(&what, loaded, &cache, &kernel, rounds, report)?;
    compare("decode", loaded, &cache, &Decoding::new, rounds, report)
}

/// Measures pieces on the pair's devices, and keeps them where its loader looks.
fn keep_pieces(loaded: &Loaded, cache: &OwnFolder) -> Result<()> {
    let soc = super::FAST.soc()?;
    let loader = loaded.loader(&soc)?;
    let devices = identities(&loader);
    let extent = Extent::default();
    let pair = BundlePair::new(loader, extent)?.context("the machine is no pair");
    let pieces = measure_pieces(&mut pair?, BundlePair::ROW_STEP, BUDGET)?;
    let bundle = loaded.bundle();
    let mut profile = Profile::new(bundle.manifest_id(), &soc.name, devices.clone());
    profile.pieces = pieces.tables();
    Ok(ProfileFile::kept(cache, bundle, &devices).write(&profile)?)
}

fn compare<M: OnMachine>(
    what: &str,
    loaded: &Loaded,
    cache: &OwnFolder,
    make: &dyn Fn(Machine) -> Result<M>,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    let shape: Shape = super::FAST;
    let mut all = vec![
        make(Machine::measured(loaded, shape, cache)?)?,
        make(Machine::new(loaded, shape)?)?,
        make(Machine::new(loaded, shape)?)?,
    ];
    for _ in 0..LEARNING {
        all[0].run_ms()?;
        all[2].run_ms()?;
    }
    let counts = all[0].machine().pair().map(|pair| pair.cuts());
    ensure!(
        counts.is_some_and(|counts| counts.measured > 0),
        "no product was cut by what was measured: {counts:?}"
    );
    let share = best_share(&mut all[1], rounds)?;
    let [measured, fixed, online] = in_turn(&mut all, rounds)?;
    let line = report.of(what, "measured pieces", measured);
    let best = format!("{share} of {PARTS} parts on the first");
    report.add(line.beside(&best, fixed, [Goal::AtLeast(0.97)]));
    report.add(line.beside("speeds of the run", online, []));
    Ok(())
}
