//! `heg verify`: checks every byte of a bundle against its hashes, and the modules for GPUs.

use std::num::NonZero;
use std::path::PathBuf;
use std::thread;

use clap::Args;
use heg_runtime::Loaded;

use crate::options::located;

/// Arguments of `heg verify`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The bundle: a file, or a name that `heg list` shows
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let loaded = Loaded::open(&located(&arguments.bundle)?)?;
    let bundle = loaded.bundle();
    let threads = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    loaded.verify(threads)?;
    println!(
        "ok: {} sections, {:.1} MB, bundle {}",
        bundle.manifest().sections.len(),
        bundle.mapping().len() as f64 / 1e6,
        bundle.manifest_id()
    );
    Ok(())
}
