//! Tables: every run as CSV, and Markdown for reading.

use super::ablation::{self, Regime};
use super::assumption::Assumption;
use super::grid::{COMPARED_PROACTIVE, MIXED_PROACTIVE, MIXED_REACTIVE};
use super::paper::{IGPU, reductions};
use super::record::{Record, RunFigure};
use super::runs::{Place, Runs};
use super::{Subject, sustained};
use super::{baselines, batching, bounds, lengths};
use crate::statistics::Estimate;
use crate::table::Markdown;
use anyhow::Result;
use heg_sched::Class;
use serde_json::Value;
use std::fmt::Write;

/// All records as CSV; names of nested fields are joined by a dot.
pub(crate) fn csv(records: &[Record]) -> Result<String> {
    let mut text = String::new();
    for record in records {
        let mut row = Vec::new();
        flatten("", &serde_json::to_value(record)?, &mut row);
        if text.is_empty() {
            let names: Vec<&str> = row.iter().map(|(name, _)| name.as_str()).collect();
            text += &names.join(",");
            text.push('\n');
        }
        let values: Vec<&str> = row.iter().map(|(_, value)| value.as_str()).collect();
        text += &values.join(",");
        text.push('\n');
    }
    Ok(text)
}

fn flatten(path: &str, value: &Value, row: &mut Vec<(String, String)>) {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(&below(name), value, row);
            }
        }
        Value::Array(values) => {
            for (name, value) in ["npu", "igpu", "cpu"].into_iter().zip(values) {
                flatten(&below(name), value, row);
            }
        }
        Value::Null => row.push((path.to_owned(), String::new())),
        // Names have no commas; quotes would be doubled.
        Value::String(text) => row.push((
            path.to_owned(),
            format!("\"{}\"", text.replace('"', "\"\"")),
        )),
        Value::Bool(_) | Value::Number(_) => row.push((path.to_owned(), value.to_string())),
    }
}

/// All tables except the comparison with the paper.
pub(crate) fn markdown(subject: &Subject, records: &[Record]) -> String {
    let runs = Runs::of(subject, records);
    let mut text = setup(subject);
    text += &lengths::table(subject);
    text += &batching::table(subject);
    sustained(subject, &runs, &mut text);
    mixed(subject, &runs, &mut text);
    text += &bounds::table(subject, &runs);
    further_baselines(subject, &runs, &mut text);
    assumptions(subject, &runs, &mut text);
    ablations(subject, &runs, &mut text);
    text
}

fn setup(subject: &Subject) -> String {
    let names = |wanted: Class| {
        let of_class = subject
            .benchmarks
            .iter()
            .filter(|(class, _)| *class == wanted);
        let names: Vec<&str> = of_class.map(|(_, w)| w.name.as_str()).collect();
        names.join(", ")
    };
    format!(
        "\n## Setup\n\n\
         {} traces of {} minutes for each pair of rates, the same ones for every policy (seeds {} to {}).\n\
         Proactive: {}. Reactive: {}.\n",
        subject.seeds.clone().count(),
        subject.minutes,
        subject.seeds.start,
        subject.seeds.end.saturating_sub(1),
        names(Class::Proactive),
        names(Class::Reactive)
    )
}

fn sustained(subject: &Subject, runs: &Runs<'_>, text: &mut String) {
    if !subject.proactive_alone {
        return;
    }
    text.push_str("\n## Proactive requests alone: sustained requests a minute\n\n");
    text.push_str(
        "At normalised latencies of 1.0 and 0.1 s/token, as mean by mean and as the mean of each request's; `>` where the\n\
         highest rate is below with some trace.\n\n",
    );
    let names = subject.policies.iter().map(|policy| policy.name());
    let mut table = Markdown::new(["model", "benchmark"].into_iter().chain(names));
    for platform in &subject.platforms {
        let benchmarks = subject.benchmarks.iter();
        for (_, workload) in benchmarks.filter(|(class, _)| *class == Class::Proactive) {
            let (model, benchmark) = (platform.model.as_str(), workload.name.as_str());
            let cells = subject.policies.iter().map(|policy| {
                let place = (model, policy.name(), benchmark);
                let cells = sustained::READINGS.into_iter().flat_map(|(_, reading)| {
                    sustained::LIMITS.map(|limit| {
                        let rates = sustained::rates(runs, place, reading, limit);
                        let above = rates.iter().any(|rate| !rate.is_exact);
                        let rates: Vec<f64> = rates.iter().map(|rate| rate.per_minute).collect();
                        let sign = if above { ">" } else { "" };
                        format!("{sign}{:.1}", Estimate::of(&rates).mean)
                    })
                });
                cells.collect::<Vec<_>>().join(" / ")
            });
            let row = [model, benchmark].map(str::to_owned);
            table.row(row.into_iter().chain(cells));
        }
    }
    text.push_str(&table.text());
}

/// Adds a row: some cells, then the figures of a place with half of their intervals.
fn row(runs: &Runs<'_>, cells: &[&str], place: Place<'_>, table: &mut Markdown) {
    if runs.at(place).is_empty() {
        return;
    }
    let figures = RunFigure::TABLE.map(|figure| {
        let found = runs.estimate(place, figure);
        let half = found.half();
        match half.is_finite() {
            true => format!("{:.3} ± {half:.3}", found.mean),
            false => format!("{:.3}", found.mean),
        }
    });
    let cells = cells.iter().map(|cell| (*cell).to_owned());
    table.row(cells.chain(figures));
}

/// Begins a table of figures.
fn head(cells: &[&'static str]) -> Markdown {
    let figures = RunFigure::TABLE.map(RunFigure::name);
    Markdown::new(cells.iter().copied().chain(figures))
}

fn mixed(subject: &Subject, runs: &Runs<'_>, text: &mut String) {
    text.push_str("\n## Reactive and proactive requests together\n\n");
    text.push_str("Times in s. TTFT, pending and TPOT are of reactive requests; the wait is a proactive one's longest.\n\n");
    let mut table = head(&["model", "req/min", "policy"]);
    for platform in &subject.platforms {
        for reactive in MIXED_REACTIVE {
            for proactive in [0.0].into_iter().chain(MIXED_PROACTIVE) {
                let regime = Regime::at(reactive, proactive);
                for policy in &subject.policies {
                    let place = Place::mixed(&platform.model, policy.name(), regime);
                    row(
                        runs,
                        &[&platform.model, &regime.show(), policy.name()],
                        place,
                        &mut table,
                    );
                }
            }
        }
    }
    text.push_str(&table.text());
}

fn further_baselines(subject: &Subject, runs: &Runs<'_>, text: &mut String) {
    if !runs.has(baselines::WHOLE_PROMPTS) {
        return;
    }
    text.push_str("\n## Further baselines\n\n");
    text.push_str(
        "Prompts that an iteration of the iGPU takes whole, instead of 256 tokens at a time, and prompts that are split over\n\
         both devices whatever else goes on.\n\n",
    );
    let mut table = head(&["model", "req/min", "policy"]);
    let own = subject.policies.iter().take(1).map(|policy| policy.name());
    let names = own.chain([IGPU, baselines::WHOLE_PROMPTS, baselines::STATIC_SPLIT]);
    let names: Vec<&str> = names.collect();
    for platform in &subject.platforms {
        for reactive in MIXED_REACTIVE {
            let regime = Regime::at(reactive, COMPARED_PROACTIVE);
            for name in &names {
                let place = Place::mixed(&platform.model, name, regime);
                row(
                    runs,
                    &[&platform.model, &regime.show(), name],
                    place,
                    &mut table,
                );
            }
        }
    }
    text.push_str(&table.text());
}

/// The reduction of the reactive mean, and its bound, under each assumption.
fn assumptions(subject: &Subject, runs: &Runs<'_>, text: &mut String) {
    let Some(own) = subject.policies.first().filter(|_| runs.has(IGPU)) else {
        return;
    };
    text.push_str("\n## Other assumptions\n\n");
    let all = [Assumption::Own].into_iter().chain(Assumption::OTHERS);
    for assumption in all.clone() {
        let name = assumption.name().unwrap_or("own");
        let _ = writeln!(text, "- **{name}:** {}.", assumption.meaning());
    }
    let _ = write!(
        text,
        "\nReduction of the reactive mean below {IGPU} at {} + {COMPARED_PROACTIVE} requests a minute, and its bound; then the \
         figures of {} at 3+6.\n\n",
        MIXED_REACTIVE.map(|rate| rate.to_string()).join(", "),
        own.name()
    );
    let mut table = head(&["model", "assumption", "reduction", "bound"]);
    for platform in &subject.platforms {
        for assumption in all.clone() {
            let model = platform.model.as_str();
            let samples = |policy, reactive, proactive| {
                let regime = Regime::at(reactive, proactive).under(assumption);
                runs.samples(Place::mixed(model, policy, regime), RunFigure::Reactive)
            };
            let less = |proactive: f64| {
                let of_rate = |rate| {
                    let theirs = samples(IGPU, rate, COMPARED_PROACTIVE);
                    let less = reductions(&samples(own.name(), rate, proactive), &theirs);
                    let found = Estimate::of(&less);
                    match found.half().is_finite() {
                        true => format!("{:.1} ± {:.1}", found.mean, found.half()),
                        false => format!("{:.1}", found.mean),
                    }
                };
                MIXED_REACTIVE.map(of_rate).join(", ")
            };
            let name = assumption.name().unwrap_or("own");
            let (reached, bound) = (less(COMPARED_PROACTIVE), less(0.0));
            let regime = Regime::at(3.0, COMPARED_PROACTIVE).under(assumption);
            let place = Place::mixed(model, own.name(), regime);
            row(runs, &[model, name, &reached, &bound], place, &mut table);
        }
    }
    text.push_str(&table.text());
}

fn ablations(subject: &Subject, runs: &Runs<'_>, text: &mut String) {
    let Some(own) = subject.policies.first() else {
        return;
    };
    let _ = writeln!(
        text,
        "\n## {}, one mechanism turned at a time\n",
        own.name()
    );
    text.push_str(
        "The whole policy's figures first, then their changes, with half of the 95% interval.\n\n",
    );
    let mut table = head(&["model", "req/min", "turned"]);
    for platform in &subject.platforms {
        let model = platform.model.as_str();
        for regime in ablation::REGIMES {
            let rates = regime.show();
            row(
                runs,
                &[model, &rates, "–"],
                Place::mixed(model, own.name(), regime),
                &mut table,
            );
            for ablation in ablation::all() {
                let changes = RunFigure::TABLE
                    .map(|figure| ablation::change(runs, model, own, &ablation, regime, figure));
                if changes.iter().any(Option::is_none) {
                    continue;
                }
                let changes = changes.into_iter().flatten();
                let changes = changes.map(|change| match change.half().is_finite() {
                    true => format!("{:+.1}% ± {:.1}", change.mean, change.half()),
                    false => format!("{:+.1}%", change.mean),
                });
                let row = [String::new(), String::new(), ablation.name(own)];
                table.row(row.into_iter().chain(changes));
            }
        }
    }
    text.push_str(&table.text());
}
