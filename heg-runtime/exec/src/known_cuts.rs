//! What is known of a pair's cuts before anything runs: the partition that the compiler solved and a bundle carries.

use heg_artifacts::Bundle;
use heg_profiler::partition::{Partitions, SocPartition, products};

use crate::error::ExecError;
use crate::loader::Loader;

/// What says how a pair shares products, before anything runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownCuts {
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
            written: written(loader.bundle(), &loader.soc().name)?,
        })
    }
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
