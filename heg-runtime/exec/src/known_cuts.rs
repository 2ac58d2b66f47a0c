//! Sources of a pair's cuts that are there before anything runs: pieces of products that `heg profile` ran on its devices, and the
//! partition that the compiler solved and a bundle carries.

use heg_artifacts::Bundle;
use heg_profiler::partition::{MeasuredPair, Partitions, SocPartition, products};

use crate::error::ExecError;
use crate::loader::Loader;
use crate::profile::{file::load_profile, identities};

/// Sources of a pair's cuts that are there before anything runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownCuts {
    /// Latencies of pieces, measured on these devices.
    pub(crate) measured: Option<MeasuredPair>,
    /// The bundle's own partition for the machine.
    pub(crate) written: Option<SocPartition>,
}

impl KnownCuts {
    /// For the bundle and the devices of a loader.
    ///
    /// # Errors
    ///
    /// [`ExecError::Section`], [`ExecError::Partition`].
    pub(crate) fn of(loader: &Loader) -> Result<Self, ExecError> {
        Ok(Self {
            measured: measured(loader),
            written: written(loader.bundle(), &loader.soc().name)?,
        })
    }
}

/// Returns what a profile in the cache folder has of pieces. A profile that cannot be read is ignored, as it is for costs:
/// `heg profile` reports what is wrong with it.
fn measured(loader: &Loader) -> Option<MeasuredPair> {
    let profile = load_profile(loader.cache()?, loader.bundle(), &identities(loader));
    let profile = profile.ok().flatten()?;
    let is_of_machine = profile.soc == loader.soc().name && !profile.pieces.is_empty();
    is_of_machine.then(|| MeasuredPair::of_tables(&profile.pieces))
}

/// Returns the bundle's partition for the machine `soc`, if it has one.
fn written(bundle: &Bundle, soc: &str) -> Result<Option<SocPartition>, ExecError> {
    let manifest = bundle.manifest();
    let Some(id) = manifest.partitions else {
        return Ok(None);
    };
    let text = bundle.section_copy(id).map_err(ExecError::Section)?;
    let all = Partitions::parse(&String::from_utf8_lossy(&text)).map_err(ExecError::Partition)?;
    let Some(found) = all.soc(soc) else {
        return Ok(None);
    };
    let shapes = products(&manifest.model, &manifest.kernels).map_err(ExecError::Partition)?;
    found
        .check_products(&shapes)
        .map_err(ExecError::Partition)?;
    Ok(Some(found.clone()))
}
