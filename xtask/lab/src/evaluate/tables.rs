//! Tables: every run as CSV, and Markdown for reading.

use super::Subject;
use super::ablation::RATES;
use super::grid::{MIXED, MIXED_PROACTIVE, MIXED_REACTIVE};
use super::paper::sustained_rate;
use super::record::{Record, mean};
use anyhow::Result;
use heg_sched::Class;
use serde_json::Value;
use std::fmt::Write;

/// All records; nested fields are joined by a dot.
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

/// Everything but the comparison with the paper.
pub(crate) fn markdown(subject: &Subject, records: &[Record]) -> String {
    let mut text = setup(subject);
    sustained(subject, records, &mut text);
    mixed(subject, records, &mut text);
    ablations(subject, records, &mut text);
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
        "## Setup\n\n\
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

fn sustained(subject: &Subject, records: &[Record], text: &mut String) {
    text.push_str("\n## Proactive requests alone: sustained requests a minute\n\n");
    text.push_str(
        "At normalised latencies of 0.1 and 1.0 s/token; `>` where the highest rate is below.\n\n",
    );
    text.push_str("| model | benchmark |");
    for policy in &subject.policies {
        let _ = write!(text, " {} |", policy.name);
    }
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(subject.policies.len()));
    text.push('\n');
    for platform in &subject.platforms {
        let proactive = subject
            .benchmarks
            .iter()
            .filter(|(class, _)| *class == Class::Proactive);
        for (_, workload) in proactive {
            let _ = write!(text, "| {} | {} |", platform.model, workload.name);
            for policy in &subject.policies {
                let show = |limit| {
                    let found = sustained_rate(
                        records,
                        &platform.model,
                        &policy.name,
                        &workload.name,
                        limit,
                    );
                    match found {
                        Some((rate, true)) => format!("{rate:.1}"),
                        Some((rate, false)) => format!(">{rate:.0}"),
                        None => "–".to_owned(),
                    }
                };
                let _ = write!(text, " {} / {} |", show(0.1), show(1.0));
            }
            text.push('\n');
        }
    }
}

fn mixed(subject: &Subject, records: &[Record], text: &mut String) {
    text.push_str("\n## Reactive and proactive requests together\n\n");
    text.push_str("Times in s: reactive mean / P90 / first token / pending; proactive mean / longest wait; iGPU-seconds; J/token.\n\n");
    text.push_str("| model | req/min | policy | mean | P90 | TTFT | TPOT | pending | proactive | wait | iGPU s | J/token |\n");
    text.push_str("|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for platform in &subject.platforms {
        for reactive in MIXED_REACTIVE {
            for proactive in [0.0].into_iter().chain(MIXED_PROACTIVE) {
                for policy in &subject.policies {
                    let found: Vec<&Record> = records
                        .iter()
                        .filter(|r| {
                            r.without.is_none()
                                && r.workload == MIXED
                                && r.model == platform.model
                                && r.policy == policy.name
                                && (r.reactive_rpm, r.proactive_rpm) == (reactive, proactive)
                        })
                        .collect();
                    let of = |figure: fn(&Record) -> f64| mean(found.iter().copied(), figure);
                    let _ = writeln!(
                        text,
                        "| {} | {reactive}+{proactive} | {} | {:.2} | {:.2} | {:.2} | {:.3} | {:.3} | {:.2} | {:.1} | {:.0} | {:.3} |",
                        platform.model,
                        policy.name,
                        of(|r| r.metrics.reactive.latency_secs_mean),
                        of(|r| r.metrics.reactive.latency_secs_p90),
                        of(|r| r.metrics.reactive.ttft_secs_mean),
                        of(|r| r.metrics.reactive.tpot_secs_mean),
                        of(|r| r.metrics.reactive.prefill_pending_secs),
                        of(|r| r.metrics.proactive.latency_secs_mean),
                        of(|r| r.metrics.proactive_wait_secs_max),
                        of(|r| r.metrics.igpu_secs),
                        of(|r| r.metrics.joules_per_token),
                    );
                }
            }
        }
    }
}

/// A figure of an ablation, less of which is better.
type Figure = (&'static str, fn(&Record) -> f64);

const FIGURES: [Figure; 5] = [
    ("reactive mean", |r| r.metrics.reactive.latency_secs_mean),
    ("reactive P90", |r| r.metrics.reactive.latency_secs_p90),
    ("proactive mean", |r| r.metrics.proactive.latency_secs_mean),
    ("iGPU s", |r| r.metrics.igpu_secs),
    ("J/token", |r| r.metrics.joules_per_token),
];

fn ablations(subject: &Subject, records: &[Record], text: &mut String) {
    let mut names: Vec<&str> = Vec::new();
    for name in records.iter().filter_map(|r| r.without.as_deref()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let Some(own) = subject.policies.first().filter(|_| !names.is_empty()) else {
        return;
    };
    let _ = writeln!(text, "\n## {} without one mechanism at a time\n", own.name);
    text.push_str("The whole policy's figures first, then the change by what is left out.\n\n| model | req/min | without |");
    for (name, _) in FIGURES {
        let _ = write!(text, " {name} |");
    }
    text.push_str("\n|---|---|---|---|---|---|---|---|\n");
    for platform in &subject.platforms {
        for (reactive, proactive) in RATES {
            let of = |without: Option<&str>, figure: fn(&Record) -> f64| {
                let fits = |r: &&Record| {
                    r.without.as_deref() == without
                        && (r.workload.as_str(), r.policy.as_str()) == (MIXED, own.name.as_str())
                        && r.model == platform.model
                        && (r.reactive_rpm, r.proactive_rpm) == (reactive, proactive)
                };
                mean(records.iter().filter(fits), figure)
            };
            let _ = write!(text, "| {} | {reactive}+{proactive} | – |", platform.model);
            for (_, figure) in FIGURES {
                let _ = write!(text, " {:.3} |", of(None, figure));
            }
            text.push('\n');
            for name in &names {
                let _ = write!(text, "| | | {name} |");
                for (_, figure) in FIGURES {
                    let change = 100.0 * (of(Some(name), figure) / of(None, figure) - 1.0);
                    let _ = write!(text, " {change:+.1}% |");
                }
                text.push('\n');
            }
        }
    }
}
