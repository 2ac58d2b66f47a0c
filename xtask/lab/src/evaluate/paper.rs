//! Compares our figures with those of the paper (Agent.xpu v2, sections 6.2 to 6.4), line by line.

use super::Subject;
use super::ablation::Regime;
use super::cited::{self, Cited};
use super::grid::{COMPARED_PROACTIVE, MIXED_REACTIVE};
use super::line::{Better, PaperLine, Standing, Unit};
use super::record::{Record, RunFigure};
use super::runs::{Place, Runs};
use super::sustained;
use crate::statistics::Estimate;
use anyhow::Result;
use serde::Deserialize;

/// Baselines by the names of their policy files.
pub(crate) const IGPU: &str = "igpu-continuous-batching";
pub(crate) const SERIAL: &str = "serial-npu-igpu";
const CPU: &str = "cpu-continuous-batching";

/// Reasons why ours is better than the paper's system.
const TWO_PROMPTS: &str = "two prompts that somebody waits for run at once here, one on each device, and short ones go first; the \
     paper serves them in turn";
const NPU_PROMPTS: &str = "background prompts run on the NPU alone whenever a person has the iGPU";
const SHORT_KERNELS: &str =
    "the paper's is a bound; a chunk's longest kernel takes less on these anchors";

/// The paper's figures; `papers/agent-xpu.ron` describes each.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figures {
    models: Cited<Vec<PaperModel>>,
    pending_secs: Cited<f64>,
    kernel_secs: Cited<f64>,
    sustained_over_igpu: Cited<[f64; 2]>,
    sustained_over_serial: Cited<[f64; 2]>,
    sustained_over_cpu_most: Cited<f64>,
    igpu_use: Cited<[f64; 2]>,
    energy_below_igpu: Cited<f64>,
}

/// The paper's figures of a model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaperModel {
    name: String,
    reductions: [f64; 3],
    growth: f64,
    proactive: [f64; 2],
}

/// The paper's figures.
pub(crate) fn figures() -> Result<Figures> {
    cited::read("Agent.xpu", include_str!("../../papers/agent-xpu.ron"))
}

/// Reductions in percent, trace by trace.
pub(crate) fn reductions(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    let pairs = ours.iter().zip(theirs);
    pairs
        .map(|(ours, theirs)| 100.0 * (1.0 - ours / theirs))
        .collect()
}

/// All lines of the comparison.
pub(crate) fn lines(subject: &Subject, records: &[Record]) -> Vec<PaperLine> {
    let Some(own) = subject.policies.first() else {
        return Vec::new();
    };
    let runs = Runs::of(subject, records);
    let says = &subject.says;
    let mut lines = Vec::new();
    for (against, paper) in [
        (IGPU, *says.sustained_over_igpu),
        (SERIAL, *says.sustained_over_serial),
        (CPU, [f64::NAN, *says.sustained_over_cpu_most]),
    ] {
        if runs.has(against) && subject.proactive_alone {
            lines.extend(sustained::lines(subject, &runs, against, paper));
        }
    }
    let of_own = Lines {
        runs,
        own: own.name(),
        says,
    };
    for platform in &subject.platforms {
        if let Some(paper) = says.models.iter().find(|p| p.name == platform.model) {
            if of_own.runs.has(IGPU) {
                lines.extend(of_own.reactive(paper));
                lines.extend(of_own.tails(paper));
                lines.extend(of_own.proactive(paper));
            }
            lines.push(of_own.growth(paper));
        }
        lines.push(
            of_own
                .pending(&[&platform.model])
                .of_model(&platform.model)
                .standing(Standing::Ours),
        );
    }
    let models: Vec<&str> = subject.platforms.iter().map(|p| p.model.as_str()).collect();
    lines.push(of_own.pending(&models));
    lines.extend(of_own.resources(&models));
    lines.extend(of_own.kernels(records, &models));
    lines
}

struct Lines<'r> {
    runs: Runs<'r>,
    /// The policy under comparison.
    own: &'r str,
    says: &'r Figures,
}

impl Lines<'_> {
    fn samples(&self, model: &str, policy: &str, rates: (f64, f64), figure: RunFigure) -> Vec<f64> {
        let regime = Regime::at(rates.0, rates.1);
        self.runs
            .samples(Place::mixed(model, policy, regime), figure)
    }

    /// Reductions of the reactive mean, beside the bound over all schedulers. The note has what the same requests take
    /// without background work, and the time of the paper's baseline if its own system took as long.
    fn reactive(&self, paper: &PaperModel) -> Vec<PaperLine> {
        let of = |policy, rates| self.samples(&paper.name, policy, rates, RunFigure::Reactive);
        let lines = MIXED_REACTIVE.into_iter().zip(paper.reductions);
        let line = |(rate, expected): (f64, f64)| {
            let theirs = of(IGPU, (rate, COMPARED_PROACTIVE));
            let ours = of(self.own, (rate, COMPARED_PROACTIVE));
            let alone = of(self.own, (rate, 0.0));
            let name =
                format!("reactive mean latency below {IGPU}, {rate}+{COMPARED_PROACTIVE} req/min");
            let figure = RunFigure::ReactiveBound;
            let least = self.samples(&paper.name, self.own, (rate, COMPARED_PROACTIVE), figure);
            let bound = Estimate::of(&reductions(&least, &theirs)).mean;
            let by_itself = Estimate::of(&reductions(&alone, &theirs)).mean;
            let implied = Estimate::of(&alone).mean / (1.0 - expected / 100.0);
            let note = format!(
                "without background requests {by_itself:.1}%; the paper's figure implies a baseline of {implied:.0} s, which \
                 takes {:.0} s here",
                Estimate::of(&theirs).mean
            );
            PaperLine::of_samples(
                name,
                Unit::Percent,
                Better::More,
                expected,
                &reductions(&ours, &theirs),
            )
            .of_model(&paper.name)
            .bounded(bound)
            .noting(note)
        };
        lines.map(line).collect()
    }

    /// Reductions of P90, which the paper says are larger than those of the mean.
    fn tails(&self, paper: &PaperModel) -> Vec<PaperLine> {
        let line = |rate: f64| {
            let rates = (rate, COMPARED_PROACTIVE);
            let reduced = |figure| {
                let of = |policy| self.samples(&paper.name, policy, rates, figure);
                reductions(&of(self.own), &of(IGPU))
            };
            let tail = reduced(RunFigure::ReactiveP90);
            let mean = Estimate::of(&reduced(RunFigure::Reactive)).mean;
            let found = Estimate::of(&tail).mean;
            let name = format!(
                "reactive P90 latency below {IGPU}, {rate}+{COMPARED_PROACTIVE} req/min, more than the mean's"
            );
            let note = format!("the mean's is {mean:.1}%");
            let line = PaperLine {
                // A sentence without a figure.
                paper: None,
                ..PaperLine::of_samples(name, Unit::Percent, Better::More, f64::NAN, &tail)
            };
            line.of_model(&paper.name).wanted(found > mean, note)
        };
        MIXED_REACTIVE.map(line).into()
    }

    /// Reductions of the proactive mean, beside the bound over all schedulers.
    fn proactive(&self, paper: &PaperModel) -> Vec<PaperLine> {
        let of = |policy, rates| self.samples(&paper.name, policy, rates, RunFigure::Proactive);
        let line = |(rate, expected): (f64, f64)| {
            let theirs = of(IGPU, (rate, COMPARED_PROACTIVE));
            let ours = of(self.own, (rate, COMPARED_PROACTIVE));
            let figure = RunFigure::ProactiveBound;
            let least = self.samples(&paper.name, self.own, (rate, COMPARED_PROACTIVE), figure);
            let name =
                format!("proactive mean latency below {IGPU}, {rate}+{COMPARED_PROACTIVE} req/min");
            PaperLine::of_samples(
                name,
                Unit::Percent,
                Better::More,
                expected,
                &reductions(&ours, &theirs),
            )
            .of_model(&paper.name)
            .bounded(Estimate::of(&reductions(&least, &theirs)).mean)
        };
        let rates = [MIXED_REACTIVE[0], MIXED_REACTIVE[2]];
        rates.into_iter().zip(paper.proactive).map(line).collect()
    }

    fn growth(&self, paper: &PaperModel) -> PaperLine {
        let latency = |proactive| {
            let figure = RunFigure::Reactive;
            let all = MIXED_REACTIVE
                .map(|rate| self.samples(&paper.name, self.own, (rate, proactive), figure));
            let sum = |trace| {
                all.iter()
                    .filter_map(|it: &Vec<f64>| it.get(trace))
                    .sum::<f64>()
            };
            (0..self.runs.traces()).map(sum).collect::<Vec<f64>>()
        };
        let (few, many) = (latency(4.0), latency(10.0));
        let growth: Vec<f64> = reductions(&many, &few).iter().map(|less| -less).collect();
        let name = "growth of reactive latency from 4 to 10 proactive req/min".to_owned();
        PaperLine::of_samples(name, Unit::Percent, Better::Less, paper.growth, &growth)
            .of_model(&paper.name)
            .better_since(TWO_PROMPTS)
    }

    fn pending(&self, models: &[&str]) -> PaperLine {
        let samples = self.runs.overall(models, self.own, RunFigure::Pending);
        let name = "reactive prefill pending, mean of the mixed regime".to_owned();
        PaperLine::of_samples(
            name,
            Unit::Secs,
            Better::Less,
            *self.says.pending_secs,
            &samples,
        )
        .better_since(TWO_PROMPTS)
    }

    /// Use of the iGPU, and energy. Prefill counts as 100% and decoding as 46%; the paper divides by the active time,
    /// and reports usage accumulated over all requests.
    fn resources(&self, models: &[&str]) -> Vec<PaperLine> {
        let measures = [
            (
                "iGPU utilisation over active time",
                RunFigure::IgpuShare,
                *self.says.igpu_use,
                Standing::Counts,
            ),
            // The same sentence of the paper, read otherwise.
            (
                "iGPU time for the same requests",
                RunFigure::IgpuTime,
                *self.says.igpu_use,
                Standing::Repeats,
            ),
            (
                "energy per token",
                RunFigure::Energy,
                [f64::NAN, *self.says.energy_below_igpu],
                Standing::Counts,
            ),
        ];
        let mut lines = Vec::new();
        for (measure, figure, paper, standing) in measures {
            let ours = self.runs.overall(models, self.own, figure);
            for (against, paper) in [SERIAL, IGPU].into_iter().zip(paper) {
                if !paper.is_nan() && self.runs.has(against) {
                    let theirs = self.runs.overall(models, against, figure);
                    let name = format!("{measure}, below {against}");
                    let less = reductions(&ours, &theirs);
                    let line =
                        PaperLine::of_samples(name, Unit::Percent, Better::More, paper, &less);
                    lines.push(line.standing(standing).better_since(NPU_PROMPTS));
                }
            }
        }
        lines
    }

    /// The cost of preemption. The longest times are maxima over all runs, not means.
    fn kernels(&self, records: &[Record], models: &[&str]) -> Vec<PaperLine> {
        let longest = |figure: RunFigure| {
            let own = records
                .iter()
                .filter(|r| r.policy == self.own && r.is_regular());
            let most = own.map(|record| figure.of(record)).fold(0.0, f64::max);
            vec![most; self.runs.traces()]
        };
        let line = |name: &str, paper, samples: &[f64]| {
            PaperLine::of_samples(name.to_owned(), Unit::Secs, Better::Less, paper, samples)
                .better_since(SHORT_KERNELS)
        };
        let mean = self.runs.overall(models, self.own, RunFigure::Preemption);
        vec![
            line(
                "mean wait of a reactive request for its first kernel, no other being before it",
                *self.says.pending_secs,
                &mean,
            )
            .standing(Standing::Ours),
            line(
                "longest wait of a reactive request for its first kernel, no other being before it",
                *self.says.kernel_secs,
                &longest(RunFigure::LongestPreemption),
            ),
            line(
                "longest kernel",
                *self.says.kernel_secs,
                &longest(RunFigure::LongestKernel),
            )
            // The paper bounds the wait by it.
            .standing(Standing::Repeats),
        ]
    }
}
