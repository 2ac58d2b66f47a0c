//! One run's figures, as they stand in `summary.json`.

use heg_sim::{Metrics, Run};
use serde::Serialize;

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Record {
    /// SoC file.
    pub(crate) soc: String,
    pub(crate) model: String,
    pub(crate) policy: String,
    /// Reactive requests a minute.
    pub(crate) reactive_rpm: f64,
    /// Proactive requests a minute.
    pub(crate) proactive_rpm: f64,
    /// Benchmark, or `mixed` for all of them.
    pub(crate) workload: String,
    pub(crate) seed: u64,
    /// Mechanism of the policy that was turned off, for an ablation.
    pub(crate) without: Option<String>,
    pub(crate) metrics: Metrics,
    /// Time that each lane ran, in s: NPU, iGPU, CPU.
    pub(crate) prefill_secs: [f64; 3],
    pub(crate) decode_secs: [f64; 3],
    /// Time that the CPU compiled kernels, in s.
    pub(crate) compile_secs: f64,
    /// Energy of the run, in J.
    pub(crate) energy_joules: f64,
    /// Requests of which something was computed again.
    pub(crate) restarted: usize,
}

impl Record {
    /// Takes the figures of a run.
    pub(crate) fn note(mut self, run: &Run) -> Self {
        self.metrics = Metrics::of(run);
        self.prefill_secs = run.usage.prefill_secs;
        self.decode_secs = run.usage.decode_secs;
        self.compile_secs = run.usage.compile_secs;
        self.energy_joules = run.usage.energy_joules;
        self.restarted = run.requests.iter().filter(|r| r.restarts > 0).count();
        self
    }
}

/// Mean of a figure over records; NaN over none.
pub(crate) fn mean<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    figure: impl Fn(&Record) -> f64,
) -> f64 {
    let (sum, count) = records
        .into_iter()
        .fold((0.0, 0u32), |(sum, count), r| (sum + figure(r), count + 1));
    sum / f64::from(count)
}
