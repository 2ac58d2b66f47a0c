//! Compiles OpenVINO IR to blobs for Intel NPUs, on a machine that need not have one.
//!
//! The compiler is a library of OpenVINO's, run in separate processes ([`NpuToolchain`]) since it may crash, hang, or
//! exist for Windows only. [`Pool`] gives them jobs; [`precompile`] adds the store in front, so that a blob is made
//! once. A blob's content, its speed and the devices for it are not examined here.
//!
//! **Cache.** A blob's recipe is its job (IR, constants, platform, properties) and the toolchain's identity: OpenVINO's
//! version with its build number, and the system that it was built for. Without a toolchain, blobs of the store are not
//! used either: a bundle's content must not depend on earlier compiles.

mod error;
#[cfg(unix)]
#[cfg(test)]
mod facts_tests;
mod job;
mod launch;
mod pool;
#[cfg(unix)]
#[cfg(test)]
mod pool_tests;
#[cfg(unix)]
#[cfg(test)]
mod real_tests;
mod scratch;
mod toolchain;
mod worker;

use std::collections::BTreeMap;

use heg_artifacts::manifest::Section;
use heg_artifacts::{RecipeKey, Store};

pub use error::NpuError;
pub use job::NpuJob;
pub use pool::{Compiled, Compiling, Pool};
#[cfg(unix)]
#[cfg(test)]
pub(crate) use real_tests::toolchain;
pub use toolchain::{Absent, NpuToolchain, Provider, wine_environment};

use crate::error::CompileError;

/// A blob in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precompiled {
    /// The blob.
    pub blob: Section,
    /// Whether an earlier run made it.
    pub recalled: bool,
}

/// Returns a blob for each job, in their order: from the store if it is there, else from the compiler. Each is put into
/// the store when it is made, so that the next run resumes a killed one. Equal jobs are compiled once. `progress` gets
/// the number of finished jobs and the number of all jobs whenever that changes.
///
/// A job that cannot be compiled has its error in its place, and the others continue.
///
/// Errors: [`CompileError::Artifacts`] and [`NpuError::Io`] if nothing can be written; [`NpuError::Unusable`] if
/// workers do not start.
pub fn precompile(
    toolchain: &NpuToolchain,
    jobs: &[NpuJob],
    store: &Store,
    pool: &Pool,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Result<Precompiled, NpuError>>, CompileError> {
    let keys: Vec<RecipeKey> = jobs
        .iter()
        .map(|job| job.recipe(toolchain.identity()))
        .collect();
    let mut outcomes: BTreeMap<RecipeKey, Result<Precompiled, NpuError>> = BTreeMap::new();
    let mut missing: BTreeMap<RecipeKey, &NpuJob> = BTreeMap::new();
    for (key, job) in keys.iter().zip(jobs) {
        match store.recall(key)?.as_deref() {
            Some([blob]) => {
                let blob = *blob;
                let recalled = true;
                outcomes.insert(*key, Ok(Precompiled { blob, recalled }));
            }
            _ => drop(missing.insert(*key, job)),
        }
    }
    let done = |outcomes: &BTreeMap<_, _>| {
        let done = keys.iter().filter(|key| outcomes.contains_key(*key));
        progress(done.count(), keys.len());
    };
    done(&outcomes);
    let (missing_keys, missing): (Vec<RecipeKey>, Vec<NpuJob>) = missing
        .into_iter()
        .map(|(key, job)| (key, job.clone()))
        .unzip();
    for Compiled { job, outcome, .. } in pool.compile(toolchain, missing)? {
        let Some(key) = missing_keys.get(job).copied() else {
            continue;
        };
        let outcome = match outcome {
            Err(error @ NpuError::Unusable { .. }) => return Err(error.into()),
            Err(error) => Err(error),
            Ok(bytes) => {
                let blob = store.put_bytes(&bytes)?;
                store.record(&key, &[blob])?;
                let recalled = false;
                Ok(Precompiled { blob, recalled })
            }
        };
        outcomes.insert(key, outcome);
        done(&outcomes);
    }
    let outcome = |key| outcomes.get(key).cloned();
    let all: Option<Vec<_>> = keys.iter().map(outcome).collect();
    // Only a thread that panicked leaves an outcome out.
    all.ok_or_else(|| {
        let toolchain = toolchain.to_string();
        let message = "a job has no outcome".to_owned();
        NpuError::Unusable { toolchain, message }.into()
    })
}
