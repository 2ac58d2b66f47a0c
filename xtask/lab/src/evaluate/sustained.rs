//! The loads that policies sustain with proactive requests alone (Agent.xpu v2, 6.2).

use super::Subject;
use super::assumption::Assumption;
use super::grid::PROACTIVE_ONLY;
use super::line::{Better, PaperLine, Standing, Unit};
use super::record::RunFigure;
use super::runs::{Place, Runs};
use crate::statistics::Estimate;
use heg_sched::Class;

/// Normalised latencies up to which a rate counts as sustained, in s per token. The paper reads its curves at 1.0,
/// which policies hardly reach here within its rates: for a thousand tokens that is a quarter of an hour, as long as a
/// trace. At a tenth of it queues already build up.
pub(crate) const LIMITS: [f64; 2] = [1.0, 0.1];

/// Both readings of "the average request end-to-end latency divided by combined input and output lengths".
pub(crate) const READINGS: [(&str, RunFigure); 2] = [
    ("mean by mean", RunFigure::PerToken),
    ("mean of each", RunFigure::PerTokenOfEach),
];

/// A sustained load, in requests per minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sustained {
    pub(crate) per_minute: f64,
    /// Whether the limit was reached; otherwise the load is above the highest rate.
    pub(crate) is_exact: bool,
}

/// The rate at which the normalised latency reaches `limit`, interpolated between the two rates around it; the highest
/// rate if it never does. One per trace.
pub(crate) fn rates(
    runs: &Runs<'_>,
    place: (&str, &str, &str),
    reading: RunFigure,
    limit: f64,
) -> Vec<Sustained> {
    let (model, policy, workload) = place;
    let curves = PROACTIVE_ONLY.map(|rate| {
        let place = Place {
            model,
            policy,
            workload,
            rates: (0.0, rate),
            ablated: None,
            assumption: Assumption::Own,
        };
        runs.samples(place, reading)
    });
    let traces = curves.iter().map(Vec::len).min().unwrap_or(0);
    let of_trace = |trace: usize| {
        let mut before = (0.0, 0.0);
        for (rate, samples) in PROACTIVE_ONLY.into_iter().zip(&curves) {
            let latency = samples[trace];
            if latency > limit {
                let share = (limit - before.1) / (latency - before.1);
                return Sustained {
                    per_minute: before.0 + share * (rate - before.0),
                    is_exact: true,
                };
            }
            before = (rate, latency);
        }
        Sustained {
            per_minute: before.0,
            is_exact: false,
        }
    };
    (0..traces).map(of_trace).collect()
}

/// The rates that the first policy sustains relative to another: for each limit and reading, the smallest and the
/// largest ratio over models and benchmarks, among those where the other policy reaches the limit with every trace.
pub(crate) fn lines(
    subject: &Subject,
    runs: &Runs<'_>,
    against: &str,
    paper: [f64; 2],
) -> Vec<PaperLine> {
    let mut lines = Vec::new();
    for limit in LIMITS {
        for (place, (reading, figure)) in READINGS.into_iter().enumerate() {
            let ratios = ratios(subject, runs, against, figure, limit);
            let mean = |samples: &Vec<f64>| Estimate::of(samples).mean;
            let least = ratios.iter().min_by(|a, b| mean(a).total_cmp(&mean(b)));
            let most = ratios.iter().max_by(|a, b| mean(a).total_cmp(&mean(b)));
            let ends = [("least", paper[0], least), ("most", paper[1], most)];
            for (end, paper, found) in ends.into_iter().filter(|(_, paper, _)| !paper.is_nan()) {
                let name = format!(
                    "proactive-only rate sustained at {limit:.1} s/token ({reading}), against {against}: {end}"
                );
                let samples = found.map_or(&[][..], Vec::as_slice);
                let line = PaperLine::of_samples(name, Unit::Times, Better::More, paper, samples)
                    .noting(format!("it gives in on {} benchmarks", ratios.len()));
                // The paper reads its curves at 1.0, in one of the two ways.
                lines.push(line.standing(match (limit == LIMITS[0], place) {
                    (true, 0) => Standing::Counts,
                    (true, _) => Standing::Repeats,
                    (false, _) => Standing::Ours,
                }));
            }
        }
    }
    lines
}

/// Ratios trace by trace, for each model and benchmark.
fn ratios(
    subject: &Subject,
    runs: &Runs<'_>,
    against: &str,
    figure: RunFigure,
    limit: f64,
) -> Vec<Vec<f64>> {
    let Some(own) = subject.policies.first() else {
        return Vec::new();
    };
    let mut ratios = Vec::new();
    for platform in &subject.platforms {
        let benchmarks = subject.benchmarks.iter();
        for (_, workload) in benchmarks.filter(|(class, _)| *class == Class::Proactive) {
            let of = |policy: &str| {
                let place = (platform.model.as_str(), policy, workload.name.as_str());
                rates(runs, place, figure, limit)
            };
            let (ours, theirs) = (of(own.name()), of(against));
            if theirs.is_empty() || theirs.iter().any(|rate| !rate.is_exact) {
                continue;
            }
            let pairs = ours.iter().zip(&theirs);
            ratios.push(
                pairs
                    .map(|(ours, theirs)| ours.per_minute / theirs.per_minute)
                    .collect(),
            );
        }
    }
    ratios
}
