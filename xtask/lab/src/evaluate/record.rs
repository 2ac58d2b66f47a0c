//! One run's figures, as in `summary.json`.

use super::assumption::Assumption;
use super::bounds::Bounds;
use super::runs::Place;
use heg_sched::{ActivationCounts, Mechanism};
use heg_sim::{Metrics, Run};
use serde::{Serialize, Serializer};

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Record {
    /// Name of the SoC file.
    pub(crate) soc: String,
    pub(crate) model: String,
    pub(crate) policy: String,
    /// Reactive requests per minute.
    pub(crate) reactive_rpm: f64,
    /// Proactive requests per minute.
    pub(crate) proactive_rpm: f64,
    /// Name of the benchmark, or `mixed` for all of them.
    pub(crate) workload: String,
    pub(crate) seed: u64,
    /// For an ablation, the mechanism of the policy that was toggled.
    #[serde(serialize_with = "mechanism_name")]
    pub(crate) ablated: Option<Mechanism>,
    /// The assumption, if it is not the evaluation's own.
    #[serde(serialize_with = "assumption_name")]
    pub(crate) assumption: Assumption,
    pub(crate) metrics: Metrics,
    /// Lower bound over all schedulers on this trace.
    pub(crate) bounds: Bounds,
    /// Time that each lane ran, in s: NPU, iGPU, CPU.
    pub(crate) prefill_secs: [f64; 3],
    pub(crate) decode_secs: [f64; 3],
    /// Time that any lane ran, in s.
    pub(crate) active_secs: f64,
    /// Time that the CPU compiled kernels, in s.
    pub(crate) compile_secs: f64,
    /// Energy of the run, in J.
    pub(crate) energy_joules: f64,
    /// Number of requests that had to recompute something.
    pub(crate) restarted: usize,
    /// Number of times that each mechanism acted.
    #[serde(skip)]
    pub(crate) activations: ActivationCounts,
}

fn mechanism_name<S: Serializer>(found: &Option<Mechanism>, to: S) -> Result<S::Ok, S::Error> {
    found.map(Mechanism::name).serialize(to)
}

fn assumption_name<S: Serializer>(found: &Assumption, to: S) -> Result<S::Ok, S::Error> {
    found.name().serialize(to)
}

impl Record {
    /// Adds the figures of a run.
    pub(crate) fn note(mut self, run: &Run) -> Self {
        self.metrics = Metrics::of(run);
        self.prefill_secs = run.usage.prefill_secs;
        self.decode_secs = run.usage.decode_secs;
        self.active_secs = run.usage.active_secs;
        self.compile_secs = run.usage.compile_secs;
        self.energy_joules = run.usage.energy_joules;
        self.restarted = run.requests.iter().filter(|r| r.restarts > 0).count();
        self.activations = run.activations;
        self
    }

    /// Whether it belongs to the regular grid: no mechanism is toggled, and the assumptions are the evaluation's own.
    pub(crate) fn is_regular(&self) -> bool {
        self.ablated.is_none() && self.assumption == Assumption::Own
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            model: &self.model,
            policy: &self.policy,
            workload: &self.workload,
            rates: (self.reactive_rpm, self.proactive_rpm),
            ablated: self.ablated,
            assumption: self.assumption,
        }
    }
}

/// A figure of a run, for tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunFigure {
    /// Mean latency of reactive requests, in s.
    Reactive,
    ReactiveP90,
    Ttft,
    /// Time before the first token during which no work of a reactive request runs, in s.
    Pending,
    Tpot,
    Proactive,
    /// Longest wait of a proactive request, in s.
    ProactiveWait,
    IgpuTime,
    /// Utilisation of the iGPU while any device runs.
    IgpuShare,
    Energy,
    /// Mean power while any device runs, in W.
    Power,
    /// Normalised latency: the ratio of means, and the mean of the ratios per request.
    PerToken,
    PerTokenOfEach,
    /// Lower bounds over all schedulers: of the reactive mean, of the same with whole kernels, of the proactive mean, of
    /// normalised latency.
    ReactiveBound,
    ReactiveWholeBound,
    ProactiveBound,
    PerTokenBound,
    Preemption,
    LongestPreemption,
    LongestKernel,
}

impl RunFigure {
    /// The figures of tables, in the order of their columns.
    pub(crate) const TABLE: [Self; 9] = [
        Self::Reactive,
        Self::ReactiveP90,
        Self::Ttft,
        Self::Pending,
        Self::Tpot,
        Self::Proactive,
        Self::ProactiveWait,
        Self::IgpuTime,
        Self::Energy,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reactive => "reactive mean",
            Self::ReactiveP90 => "reactive P90",
            Self::Ttft => "TTFT",
            Self::Pending => "pending",
            Self::Tpot => "TPOT",
            Self::Proactive => "proactive mean",
            Self::ProactiveWait => "proactive wait",
            Self::IgpuTime => "iGPU s",
            Self::IgpuShare => "iGPU share",
            Self::Energy => "J/token",
            Self::Power => "W",
            Self::PerToken => "s/token",
            Self::PerTokenOfEach => "s/token of each",
            Self::ReactiveBound => "reactive bound",
            Self::ReactiveWholeBound => "reactive bound with whole kernels",
            Self::ProactiveBound => "proactive bound",
            Self::PerTokenBound => "s/token bound",
            Self::Preemption => "preemption",
            Self::LongestPreemption => "longest preemption",
            Self::LongestKernel => "longest kernel",
        }
    }

    /// The figure's value in a record; less is better.
    pub(crate) fn of(self, record: &Record) -> f64 {
        let metrics = &record.metrics;
        match self {
            Self::Reactive => metrics.reactive.latency_secs_mean,
            Self::ReactiveP90 => metrics.reactive.latency_secs_p90,
            Self::Ttft => metrics.reactive.ttft_secs_mean,
            Self::Pending => metrics.reactive.prefill_pending_secs,
            Self::Tpot => metrics.reactive.tpot_secs_mean,
            Self::Proactive => metrics.proactive.latency_secs_mean,
            Self::ProactiveWait => metrics.proactive_wait_secs_max,
            Self::IgpuTime => metrics.igpu_secs,
            Self::IgpuShare => metrics.igpu_utilisation,
            Self::Energy => metrics.joules_per_token,
            Self::Power => record.energy_joules / record.active_secs,
            Self::PerToken => metrics.all.secs_per_token,
            Self::PerTokenOfEach => metrics.all.secs_per_token_of_each,
            Self::ReactiveBound => record.bounds.reactive_secs,
            Self::ReactiveWholeBound => record.bounds.reactive_whole_secs,
            Self::ProactiveBound => record.bounds.proactive_secs,
            Self::PerTokenBound => record.bounds.secs_per_token,
            Self::Preemption => metrics.preemption_secs_mean,
            Self::LongestPreemption => metrics.preemption_secs_max,
            Self::LongestKernel => metrics.longest_kernel_secs,
        }
    }
}

/// Mean of a figure over records; NaN if there are none.
pub(crate) fn mean<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    figure: impl Fn(&Record) -> f64,
) -> f64 {
    let (sum, count) = records
        .into_iter()
        .fold((0.0, 0u32), |(sum, count), r| (sum + figure(r), count + 1));
    sum / f64::from(count)
}
