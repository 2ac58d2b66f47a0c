//! A GPU without a bundle, as `heg doctor --gpu` asks: its arithmetic and its memory, found out by another process, since a
//! driver may crash where it compiles the probe.

use std::collections::BTreeMap;

use heg_gpu::{Fidelity, GpuDevice, GpuError, GpuOptions, Means, Sharing};
use serde::{Deserialize, Serialize};

use crate::gpu_examiner::Question;
use crate::gpu_process::{GpuProcess, NoAnswer};

/// The properties of a GPU that a process of its own has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuReport {
    /// Differences from the results of CPU programs; `None` where bits are equal.
    pub differs: Option<String>,
    /// The way to a · b + c with one rounding: `instruction` or `steps`.
    pub fma: String,
    /// The way of division.
    pub division: String,
    /// The way of square roots.
    pub root: String,
    /// Whether dot products of bytes use the device's instruction for them.
    pub dots: bool,
    /// Access to weights: `imported` or `copied`.
    pub weights: String,
    /// Memory of keys and values: `imported` or `shared` where the host works on it, too, or else `copied`.
    pub caches: String,
    /// Cases that each operation was tried with.
    pub cases: usize,
    /// Operations, each with the number of cases in which its bits differed.
    pub wrong: BTreeMap<String, usize>,
}

/// The reason why a GPU cannot be examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFailure {
    /// The reason.
    pub reason: String,
    /// Whether it will be the same with this version of the driver.
    pub is_lasting: bool,
}

impl GpuProcess {
    /// Has the process probe the device that options name.
    ///
    /// # Errors
    ///
    /// [`GpuFailure`] where the driver crashes, hangs or refuses.
    pub fn probe(&self, options: &GpuOptions) -> Result<GpuReport, GpuFailure> {
        let question = Question::Device {
            gpu: options.name.clone(),
        };
        self.ask(&question).map_err(|answer| GpuFailure {
            is_lasting: matches!(answer, NoAnswer::Fatal(_)),
            reason: answer.reason(),
        })
    }
}

/// The process's side.
pub(crate) fn report(gpu: Option<String>) -> Result<GpuReport, GpuError> {
    let mut options = GpuOptions::from_environment();
    options.name = gpu.or(options.name);
    let device = GpuDevice::open(&options)?;
    let probe = device.probe();
    let arithmetic = probe.arithmetic;
    let means = |means: Means| means.to_string();
    let wrong = probe.wrong.iter();
    Ok(GpuReport {
        differs: match device.fidelity() {
            Fidelity::Equal => None,
            Fidelity::Close { reason } => Some(reason.clone()),
        },
        fma: means(arithmetic.fma),
        division: means(arithmetic.division),
        root: means(arithmetic.root),
        dots: arithmetic.dots,
        weights: match device.sharing() {
            Sharing::Imported => "imported",
            Sharing::Copied => "copied",
        }
        .to_owned(),
        caches: device.cache_memory().to_string(),
        cases: probe.cases,
        wrong: wrong
            .map(|(operation, wrong)| ((*operation).to_owned(), *wrong))
            .collect(),
    })
}
