//! Our figures beside those of the paper (Agent.xpu v2, sections 6.2 to 6.4), line by line.

use super::Subject;
use super::ablation::Regime;
use super::grid::{COMPARED_PROACTIVE, MIXED_REACTIVE};
use super::line::{Better, PaperLine, Unit};
use super::record::{Record, RunFigure};
use super::runs::{Place, Runs};
use super::statistics::Estimate;
use super::sustained;

/// Baselines by the names of their policy files.
pub(crate) const IGPU: &str = "igpu-continuous-batching";
pub(crate) const SERIAL: &str = "serial-npu-igpu";

/// The paper's figures of a model: reductions of the reactive mean at 1, 3 and 5 reactive requests a minute
/// beside 6 proactive ones, growth of the reactive latency from 4 to 10, improvements of the proactive mean.
struct PaperModel {
    name: &'static str,
    reductions: [f64; 3],
    growth: f64,
    proactive: [f64; 2],
}

const PAPER_MODELS: [PaperModel; 2] = [
    PaperModel {
        name: "llama-3.2-3b",
        reductions: [91.61, 93.84, 96.01],
        growth: 19.0,
        proactive: [34.4, 0.3],
    },
    PaperModel {
        name: "llama-3.1-8b",
        reductions: [96.23, 96.01, 96.70],
        growth: 49.0,
        proactive: [58.7, 6.1],
    },
];

/// Reactive prefill pending time of the paper, in s.
const PENDING_SECS: f64 = 0.048;

/// A kernel takes less than this, and so does preemption (4.4).
const KERNEL_SECS: f64 = 0.1;

/// Less by so many percent, trace by trace.
pub(crate) fn reductions(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    let pairs = ours.iter().zip(theirs);
    pairs
        .map(|(ours, theirs)| 100.0 * (1.0 - ours / theirs))
        .collect()
}

/// All lines.
pub(crate) fn lines(subject: &Subject, records: &[Record]) -> Vec<PaperLine> {
    let Some(own) = subject.policies.first() else {
        return Vec::new();
    };
    let runs = Runs::of(subject, records);
    let mut lines = Vec::new();
    for (against, paper) in [(IGPU, [1.2, 2.4]), (SERIAL, [1.4, 4.9])] {
        if runs.has(against) {
            lines.extend(sustained::lines(subject, &runs, against, paper));
        }
    }
    let of_own = Lines {
        runs,
        own: &own.name,
    };
    for platform in &subject.platforms {
        if let Some(paper) = PAPER_MODELS.iter().find(|p| p.name == platform.model) {
            if of_own.runs.has(IGPU) {
                lines.extend(of_own.reactive(paper));
                lines.extend(of_own.proactive(paper));
            }
            lines.push(of_own.growth(paper));
        }
        lines.push(
            of_own
                .pending(&[&platform.model])
                .of_model(&platform.model)
                .ours_only(),
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
    /// The policy that is compared with the others.
    own: &'r str,
}

impl Lines<'_> {
    fn samples(&self, model: &str, policy: &str, rates: (f64, f64), figure: RunFigure) -> Vec<f64> {
        let regime = Regime::at(rates.0, rates.1);
        self.runs
            .samples(Place::mixed(model, policy, regime), figure)
    }

    /// Reductions of the reactive mean. What the requests take alone bounds them, and says what the paper's baseline took
    /// if its own system was as fast as that.
    fn reactive(&self, paper: &PaperModel) -> Vec<PaperLine> {
        let of = |policy, rates| self.samples(paper.name, policy, rates, RunFigure::Reactive);
        let lines = MIXED_REACTIVE.into_iter().zip(paper.reductions);
        let line = |(rate, expected): (f64, f64)| {
            let theirs = of(IGPU, (rate, COMPARED_PROACTIVE));
            let ours = of(self.own, (rate, COMPARED_PROACTIVE));
            let alone = of(self.own, (rate, 0.0));
            let name =
                format!("reactive mean latency below {IGPU}, {rate}+{COMPARED_PROACTIVE} req/min");
            let bound = Estimate::of(&reductions(&alone, &theirs)).mean;
            let implied = Estimate::of(&alone).mean / (1.0 - expected / 100.0);
            let note = format!(
                "implies a baseline of {implied:.0} s; it takes {:.0} s",
                Estimate::of(&theirs).mean
            );
            PaperLine::new(
                name,
                Unit::Percent,
                Better::More,
                expected,
                &reductions(&ours, &theirs),
            )
            .of_model(paper.name)
            .bounded(bound)
            .noting(note)
        };
        lines.map(line).collect()
    }

    /// Reductions of the proactive mean, bounded by what the requests take without reactive ones.
    fn proactive(&self, paper: &PaperModel) -> Vec<PaperLine> {
        let of = |policy, rates| self.samples(paper.name, policy, rates, RunFigure::Proactive);
        let alone = of(self.own, (0.0, COMPARED_PROACTIVE));
        let line = |(rate, expected): (f64, f64)| {
            let theirs = of(IGPU, (rate, COMPARED_PROACTIVE));
            let ours = of(self.own, (rate, COMPARED_PROACTIVE));
            let name =
                format!("proactive mean latency below {IGPU}, {rate}+{COMPARED_PROACTIVE} req/min");
            PaperLine::new(
                name,
                Unit::Percent,
                Better::More,
                expected,
                &reductions(&ours, &theirs),
            )
            .of_model(paper.name)
            .bounded(Estimate::of(&reductions(&alone, &theirs)).mean)
        };
        let rates = [MIXED_REACTIVE[0], MIXED_REACTIVE[2]];
        rates.into_iter().zip(paper.proactive).map(line).collect()
    }

    fn growth(&self, paper: &PaperModel) -> PaperLine {
        let latency = |proactive| {
            let figure = RunFigure::Reactive;
            let all = MIXED_REACTIVE
                .map(|rate| self.samples(paper.name, self.own, (rate, proactive), figure));
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
        PaperLine::new(name, Unit::Percent, Better::Less, paper.growth, &growth)
            .of_model(paper.name)
            .bounded(0.0)
    }

    fn pending(&self, models: &[&str]) -> PaperLine {
        let samples = self.runs.overall(models, self.own, RunFigure::Pending);
        let name = "reactive prefill pending, mean of the mixed regime".to_owned();
        PaperLine::new(name, Unit::Secs, Better::Less, PENDING_SECS, &samples).bounded(0.0)
    }

    /// Use of the iGPU, and energy. Prefill counts as 100% and decoding as 46%; the paper divides by the time of
    /// activity, and speaks of usage accumulated over all requests.
    fn resources(&self, models: &[&str]) -> Vec<PaperLine> {
        let measures = [
            (
                "iGPU utilisation over active time",
                RunFigure::IgpuShare,
                [32.5, 37.1],
            ),
            (
                "iGPU time for the same requests",
                RunFigure::IgpuTime,
                [32.5, 37.1],
            ),
            ("energy per token", RunFigure::Energy, [f64::NAN, 26.8]),
        ];
        let mut lines = Vec::new();
        for (measure, figure, paper) in measures {
            let ours = self.runs.overall(models, self.own, figure);
            for (against, paper) in [SERIAL, IGPU].into_iter().zip(paper) {
                if !paper.is_nan() && self.runs.has(against) {
                    let theirs = self.runs.overall(models, against, figure);
                    let name = format!("{measure}, below {against}");
                    let less = reductions(&ours, &theirs);
                    lines.push(PaperLine::new(
                        name,
                        Unit::Percent,
                        Better::More,
                        paper,
                        &less,
                    ));
                }
            }
        }
        lines
    }

    /// What preemption takes. The longest are over all runs, not means.
    fn kernels(&self, records: &[Record], models: &[&str]) -> Vec<PaperLine> {
        let longest = |figure: RunFigure| {
            let own = records
                .iter()
                .filter(|r| r.policy == self.own && r.is_regular());
            let most = own.map(|record| figure.of(record)).fold(0.0, f64::max);
            vec![most; self.runs.traces()]
        };
        let line = |name: &str, paper, samples: &[f64]| {
            PaperLine::new(name.to_owned(), Unit::Secs, Better::Less, paper, samples).bounded(0.0)
        };
        let mean = self.runs.overall(models, self.own, RunFigure::Preemption);
        vec![
            line(
                "mean wait of a reactive request for its first kernel, no other being before it",
                PENDING_SECS,
                &mean,
            )
            .ours_only(),
            line(
                "longest wait of a reactive request for its first kernel, no other being before it",
                KERNEL_SECS,
                &longest(RunFigure::LongestPreemption),
            ),
            line(
                "longest kernel",
                KERNEL_SECS,
                &longest(RunFigure::LongestKernel),
            ),
        ]
    }
}
