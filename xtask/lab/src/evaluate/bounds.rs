//! Lower bounds of mean latency, trace by trace: what no scheduler could pass on a machine with these kernels.

use super::Subject;
use super::assumption::Assumption;
use super::grid::{Case, MIXED_PROACTIVE, MIXED_REACTIVE};
use super::record::{Record, RunFigure};
use super::runs::{Place, Runs};
use crate::evaluate::ablation::Regime;
use crate::table::Markdown;
use heg_sched::{CachedCosts, Class};
use heg_sim::{DecodeKernels, Division, LatencyBound, TraceExtent};
use heg_workload::Trace;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// Lower bounds of a trace on a machine, in s; NaN where the trace has no such requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Bounds {
    /// Mean latency of reactive requests, where lanes may share every kernel.
    pub(crate) reactive_secs: f64,
    /// The same where one lane runs a decode kernel.
    pub(crate) reactive_whole_secs: f64,
    pub(crate) proactive_secs: f64,
    /// Mean latency by mean tokens, of all requests.
    pub(crate) secs_per_token: f64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            reactive_secs: f64::NAN,
            reactive_whole_secs: f64::NAN,
            proactive_secs: f64::NAN,
            secs_per_token: f64::NAN,
        }
    }
}

/// The bounds of a machine under an assumption.
struct OfMachine {
    divided: LatencyBound,
    whole: LatencyBound,
}

/// More than any trace of the evaluation has.
const EXTENT: TraceExtent = TraceExtent {
    requests: 1 << 10,
    tokens: 1 << 20,
};

impl OfMachine {
    fn new(subject: &Subject, (platform, assumption): (usize, Assumption)) -> Self {
        let platform = assumption.platform(&subject.platforms[platform]);
        let costs = CachedCosts::new(&platform.costs);
        let decode = match assumption {
            Assumption::FusedLayer => DecodeKernels::OneToo,
            _ => DecodeKernels::Three,
        };
        let memory = &platform.machine.memory;
        let of = |division| LatencyBound::new(&costs, memory, decode, division, EXTENT);
        Self {
            divided: of(Division::Divided),
            whole: of(Division::Whole),
        }
    }

    fn of(&self, trace: &Trace) -> Bounds {
        let mean = |bound: &LatencyBound, class| bound.mean_secs(trace, class).unwrap_or(f64::NAN);
        let tokens = trace
            .requests
            .iter()
            .map(|r| f64::from(r.prompt_tokens) + f64::from(r.output_tokens));
        let tokens = tokens.sum::<f64>() / trace.requests.len() as f64;
        Bounds {
            reactive_secs: mean(&self.divided, Some(Class::Reactive)),
            reactive_whole_secs: mean(&self.whole, Some(Class::Reactive)),
            proactive_secs: mean(&self.divided, Some(Class::Proactive)),
            secs_per_token: mean(&self.divided, None) / tokens,
        }
    }
}

/// Returns the bounds of the cases, in their order. Cases on the same trace have the same.
pub(crate) fn of_cases(subject: &Subject, cases: &[Case]) -> Vec<Bounds> {
    let machine = |case: &Case| (case.platform, case.assumption);
    let machines: HashSet<(usize, Assumption)> = cases.iter().map(machine).collect();
    let machines: HashMap<(usize, Assumption), OfMachine> = machines
        .into_par_iter()
        .map(|key| (key, OfMachine::new(subject, key)))
        .collect();
    let distinct: HashMap<_, &Case> = cases.iter().map(|case| (case.trace_key(), case)).collect();
    let bounds: HashMap<_, Bounds> = distinct
        .into_par_iter()
        .map(|(key, case)| (key, machines[&machine(case)].of(&case.trace(subject))))
        .collect();
    let of_case = |case: &Case| bounds.get(&case.trace_key()).copied().unwrap_or_default();
    cases.iter().map(of_case).collect()
}

/// Every policy beside the bounds of its traces.
pub(crate) fn table(subject: &Subject, runs: &Runs<'_>) -> String {
    let mut table = Markdown::new([
        "model",
        "req/min",
        "policy",
        "reactive mean",
        "no scheduler could pass",
        "policy ÷ bound",
        "with whole kernels",
        "proactive mean",
        "bound",
        "s/token",
        "bound",
    ]);
    for platform in &subject.platforms {
        for reactive in MIXED_REACTIVE {
            for proactive in [0.0].into_iter().chain(MIXED_PROACTIVE) {
                let regime = Regime::at(reactive, proactive);
                for policy in &subject.policies {
                    let place = Place::mixed(&platform.model, policy.name(), regime);
                    if runs.at(place).is_empty() {
                        continue;
                    }
                    let mean = |figure| runs.estimate(place, figure).mean;
                    let show = |figure| match mean(figure) {
                        found if found.is_finite() => format!("{found:.3}"),
                        _ => "–".to_owned(),
                    };
                    let (found, bound) =
                        (mean(RunFigure::Reactive), mean(RunFigure::ReactiveBound));
                    table.row([
                        platform.model.clone(),
                        regime.show(),
                        policy.name().to_owned(),
                        show(RunFigure::Reactive),
                        show(RunFigure::ReactiveBound),
                        format!("{:.2}×", found / bound),
                        show(RunFigure::ReactiveWholeBound),
                        show(RunFigure::Proactive),
                        show(RunFigure::ProactiveBound),
                        show(RunFigure::PerToken),
                        show(RunFigure::PerTokenBound),
                    ]);
                }
            }
        }
    }
    format!(
        "\n## Every policy beside a bound\n\n\
         Times in s. The bound holds for every scheduler, also for one that knows the future: kernels may be divided between\n\
         NPU, iGPU and CPU without end, preempted for nothing, and batched with anything (`LatencyBound` in\n\
         `heg-runtime/sim/src/bound` has the proof). With whole kernels: one lane runs a decode kernel.\n\n{}",
        table.text()
    )
}

/// Whether a run passed a bound, which would be a mistake of the bound or of the simulator.
pub(crate) fn passed(records: &[Record]) -> Vec<String> {
    let figures = [
        (RunFigure::Reactive, RunFigure::ReactiveWholeBound),
        (RunFigure::Reactive, RunFigure::ReactiveBound),
        (RunFigure::Proactive, RunFigure::ProactiveBound),
        (RunFigure::PerToken, RunFigure::PerTokenBound),
    ];
    let mut passed = Vec::new();
    for record in records {
        for (figure, bound) in figures {
            let (found, least) = (figure.of(record), bound.of(record));
            // A launch of the simulator ends at a whole µs.
            if found < 0.999 * least {
                passed.push(format!(
                    "{} on {} at {}+{}, seed {}: {} of {found:.4} s, at least {least:.4} s",
                    record.policy,
                    record.model,
                    record.reactive_rpm,
                    record.proactive_rpm,
                    record.seed,
                    figure.name()
                ));
            }
        }
    }
    passed
}
