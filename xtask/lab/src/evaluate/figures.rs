//! The counterparts of the paper's figures 10 to 13 (Agent.xpu v2).

use super::Subject;
use super::chart::{Bar, BarGroup, Bars, Lines, Panel, Series, Sheet, colour};
use super::grid::{MIXED, MIXED_PROACTIVE, MIXED_REACTIVE, PROACTIVE_ONLY};
use super::record::{Record, mean};
use anyhow::Result;
use heg_sched::Class;
use heg_sim::ClassMetrics;
use plotters::prelude::RGBColor;

/// All figures, each with its file's name.
pub(crate) fn all(subject: &Subject, records: &[Record]) -> Result<Vec<(String, String)>> {
    let drawn = Drawing { subject, records };
    Ok(vec![
        (
            "fig10-proactive-only.svg".to_owned(),
            drawn.proactive_only()?,
        ),
        (
            "fig11-reactive-latency.svg".to_owned(),
            drawn.latency(Class::Reactive)?,
        ),
        (
            "fig11-proactive-latency.svg".to_owned(),
            drawn.latency(Class::Proactive)?,
        ),
        ("fig12-breakdown.svg".to_owned(), drawn.breakdown()?),
        ("fig13-igpu-and-energy.svg".to_owned(), drawn.overhead()?),
    ])
}

struct Drawing<'a> {
    subject: &'a Subject,
    records: &'a [Record],
}

impl Drawing<'_> {
    /// A figure's mean over the seeds of one point; NaN if there were no runs.
    fn at(
        &self,
        place: (&str, &str, &str),
        rates: (f64, f64),
        figure: impl Fn(&Record) -> f64,
    ) -> f64 {
        let fits = |r: &&Record| {
            r.is_regular()
                && (r.model.as_str(), r.policy.as_str(), r.workload.as_str()) == place
                && (r.reactive_rpm, r.proactive_rpm) == rates
        };
        mean(self.records.iter().filter(fits), figure)
    }

    /// The policies by their colours.
    fn legend(&self) -> Vec<(String, RGBColor)> {
        let policies = self.subject.policies.iter().enumerate();
        policies
            .map(|(place, policy)| (policy.name().to_owned(), colour(place)))
            .collect()
    }

    fn span(&self) -> String {
        format!(
            "{}, traces of {} minutes, {} for each point",
            self.subject
                .platforms
                .first()
                .map_or("", |p| p.soc.as_str()),
            self.subject.minutes,
            self.subject.seeds.clone().count()
        )
    }

    /// Fig. 10: normalised latency over the rate.
    fn proactive_only(&self) -> Result<String> {
        let proactive = self.subject.benchmarks.iter();
        let proactive: Vec<&str> = proactive
            .filter(|(class, _)| *class == Class::Proactive)
            .map(|(_, w)| w.name.as_str())
            .collect();
        let mut panels = Vec::new();
        for platform in &self.subject.platforms {
            for workload in &proactive {
                let policies = self.subject.policies.iter().enumerate();
                let series = policies.map(|(place, policy)| {
                    let at = |rate| {
                        let place = (platform.model.as_str(), policy.name(), *workload);
                        let latency = self.at(place, (0.0, rate), |r| r.metrics.all.secs_per_token);
                        (rate, latency)
                    };
                    Series {
                        colour: colour(place),
                        points: PROACTIVE_ONLY
                            .into_iter()
                            .filter(|rate| *rate <= 30.0)
                            .map(at)
                            .collect(),
                        dashed: false,
                    }
                });
                panels.push(Panel {
                    title: format!("{workload}, {}", platform.model),
                    series: series.collect(),
                });
            }
        }
        let lines = Lines {
            sheet: Sheet {
                title: "Proactive requests alone (figure 10)".to_owned(),
                subtitle: format!(
                    "Mean latency by tokens of prompt and answer; {}",
                    self.span()
                ),
                legend: self.legend(),
                columns: proactive.len(),
            },
            x: "proactive requests a minute".to_owned(),
            y: "s per token".to_owned(),
            panels,
        };
        lines.svg()
    }

    /// Fig. 11: mean and P90 latency of a class over the proactive rate.
    fn latency(&self, class: Class) -> Result<String> {
        let of = move |r: &Record| match class {
            Class::Reactive => r.metrics.reactive,
            Class::Proactive => r.metrics.proactive,
        };
        let mut panels = Vec::new();
        for platform in &self.subject.platforms {
            for reactive in MIXED_REACTIVE {
                let mut series = Vec::new();
                for (place, policy) in self.subject.policies.iter().enumerate() {
                    let points = |figure: &dyn Fn(&ClassMetrics) -> f64| {
                        let at = |proactive: f64| {
                            let place = (platform.model.as_str(), policy.name(), MIXED);
                            let rates = (reactive, proactive);
                            (proactive, self.at(place, rates, |r| figure(&of(r))))
                        };
                        MIXED_PROACTIVE.map(at).to_vec()
                    };
                    let line = |points, dashed| Series {
                        colour: colour(place),
                        points,
                        dashed,
                    };
                    series.push(line(points(&|m| m.latency_secs_mean), false));
                    series.push(line(points(&|m| m.latency_secs_p90), true));
                }
                panels.push(Panel {
                    title: format!("{}, {reactive} reactive/min", platform.model),
                    series,
                });
            }
        }
        let name = match class {
            Class::Reactive => "Reactive",
            Class::Proactive => "Proactive",
        };
        let lines = Lines {
            sheet: Sheet {
                title: format!("{name} latency in mixed workloads (figure 11)"),
                subtitle: format!("Mean (dots) and 90th percentile (dashes); {}", self.span()),
                legend: self.legend(),
                columns: MIXED_REACTIVE.len(),
            },
            x: "proactive requests a minute".to_owned(),
            y: "latency in s".to_owned(),
            panels,
        };
        lines.svg()
    }

    /// Fig. 12: the parts of latency, at 3 reactive and 6 proactive requests per minute.
    fn breakdown(&self) -> Result<String> {
        let parts: [Part; 4] = [
            ("prefill pending", |m| m.prefill_pending_secs),
            ("prefill active", |m| m.prefill_active_secs),
            ("decode pending", |m| m.decode_pending_secs),
            ("decode active", |m| m.decode_active_secs),
        ];
        let colours = [
            RGBColor(253, 190, 133),
            RGBColor(217, 95, 14),
            RGBColor(158, 202, 225),
            RGBColor(33, 113, 181),
        ];
        let mut groups = Vec::new();
        for platform in &self.subject.platforms {
            for (name, of) in CLASSES {
                let bars = self.subject.policies.iter().map(|policy| {
                    let place = (platform.model.as_str(), policy.name(), MIXED);
                    let value = |part: fn(&ClassMetrics) -> f64| {
                        self.at(place, (3.0, 6.0), |r| part(&of(r)))
                    };
                    let values = parts.map(|(_, part)| value(part));
                    let total: f64 = values.iter().sum();
                    Bar {
                        name: policy.name().to_owned(),
                        parts: values
                            .map(|value| value / total)
                            .into_iter()
                            .zip(colours)
                            .collect(),
                        words: format!("{total:.1} s"),
                    }
                });
                groups.push(BarGroup {
                    title: format!("{name}, {}", platform.model),
                    bars: bars.filter(is_known).collect(),
                });
            }
        }
        let names = parts.iter().zip(colours);
        let bars = Bars {
            sheet: Sheet {
                title: "What latency consists of (figure 12)".to_owned(),
                subtitle: format!(
                    "Shares of the mean latency, at 3 reactive and 6 proactive requests a minute; {}",
                    self.span()
                ),
                legend: names
                    .map(|((name, _), colour)| ((*name).to_owned(), colour))
                    .collect(),
                columns: CLASSES.len(),
            },
            groups,
        };
        bars.svg()
    }

    /// Fig. 13: the use of the iGPU for the same requests, and energy per token, over the mixed regime.
    fn overhead(&self) -> Result<String> {
        let figures: [Measure; 2] = [
            ("iGPU-seconds a run", "s", |r| r.metrics.igpu_secs),
            ("Energy per token", "J", |r| r.metrics.joules_per_token),
        ];
        let mut groups = Vec::new();
        for platform in &self.subject.platforms {
            for (title, unit, figure) in figures {
                let bars = self
                    .subject
                    .policies
                    .iter()
                    .enumerate()
                    .map(|(place, policy)| {
                        let all = self.records.iter().filter(|r| {
                            r.is_regular()
                                && (r.model.as_str(), r.policy.as_str(), r.workload.as_str())
                                    == (platform.model.as_str(), policy.name(), MIXED)
                                && r.proactive_rpm > 0.0
                        });
                        let value = mean(all, figure);
                        Bar {
                            name: policy.name().to_owned(),
                            parts: vec![(value, colour(place))],
                            words: format!("{} {unit}", super::chart::figure(value)),
                        }
                    });
                groups.push(BarGroup {
                    title: format!("{title}, {}", platform.model),
                    bars: bars.filter(is_known).collect(),
                });
            }
        }
        let bars = Bars {
            sheet: Sheet {
                title: "Use of the iGPU, and energy (figure 13)".to_owned(),
                subtitle: format!(
                    "Prefill counts as 100% of the iGPU, decoding as 46%; mixed workloads, {}",
                    self.span()
                ),
                legend: Vec::new(),
                columns: figures.len(),
            },
            groups,
        };
        bars.svg()
    }
}

/// A part of latency: its name, and its seconds.
type Part = (&'static str, fn(&ClassMetrics) -> f64);

/// A figure of a run: its name, its unit, its value.
type Measure = (&'static str, &'static str, fn(&Record) -> f64);

/// Whether there were any runs for a bar.
fn is_known(bar: &Bar) -> bool {
    bar.parts.iter().all(|(value, _)| value.is_finite())
}

/// The figures of a class in a record.
type OfClass = fn(&Record) -> ClassMetrics;

const CLASSES: [(&str, OfClass); 2] = [
    ("Reactive", |r| r.metrics.reactive),
    ("Proactive", |r| r.metrics.proactive),
];
