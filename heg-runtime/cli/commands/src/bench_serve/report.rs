//! The outcome of a trace: a table for people, JSON for programs.

use heg_workload::{ClassFigures, EngineFigures, Figures, Outcome};
use serde_json::{Value, json};

/// A line of the table: its title, and the function that formats its cell.
type Line = (&'static str, fn(&ClassFigures) -> String);

const LINES: [Line; 15] = [
    ("requests", |f| f.requests.to_string()),
    ("failed", |f| f.failed.to_string()),
    ("ended early", |f| f.short.to_string()),
    ("end to end, mean", |f| seconds(f.latency_secs_mean)),
    ("            P50", |f| seconds(f.latency_secs_p50)),
    ("            P90", |f| seconds(f.latency_secs_p90)),
    ("            max", |f| seconds(f.latency_secs_max)),
    ("first token, mean", |f| seconds(f.ttft_secs_mean)),
    ("             P90", |f| seconds(f.ttft_secs_p90)),
    ("per token after that", |f| millis(f.tpot_secs_mean)),
    ("longest gap between tokens", |f| millis(f.gap_secs_max)),
    ("normalised latency", |f| {
        format!("{}/token", millis(f.secs_per_token))
    }),
    ("prompt tokens", |f| rate(f.prompt_tokens_per_s)),
    ("answer tokens", |f| rate(f.output_tokens_per_s)),
    ("all tokens", |f| rate(f.tokens_per_s())),
];

/// Returns a table of the figures by class, followed by the reasons of failures.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let figures = Figures::of(outcomes);
    let mut text = format!("{:28}{:>16}{:>16}\n", "", "reactive", "proactive");
    for (title, show) in LINES {
        let row = [&figures.reactive, &figures.proactive].map(|class| shown(class, title, show));
        text.push_str(&format!("{title:28}{:>16}{:>16}\n", row[0], row[1]));
    }
    let mut failures: Vec<&str> = outcomes
        .iter()
        .filter_map(|outcome| outcome.failure.as_deref())
        .collect();
    failures.sort_unstable();
    for same in failures.chunk_by(|one, other| one == other) {
        text.push_str(&format!("failed {} times: {}\n", same.len(), same[0]));
    }
    text
}

/// Formats a cell; nothing was measured if nothing was answered.
fn shown(class: &ClassFigures, title: &str, show: fn(&ClassFigures) -> String) -> String {
    let is_count = matches!(title, "requests" | "failed" | "ended early");
    match is_count || class.requests > class.failed {
        true => show(class),
        false => "-".to_owned(),
    }
}

/// JSON with `figures` by class, `requests` in the order of the trace, and `engine`, which is null for other servers
/// than ours.
pub(super) fn json(outcomes: &[Outcome], engine: Option<&EngineFigures>) -> Value {
    json!({ "figures": Figures::of(outcomes), "requests": outcomes, "engine": engine })
}

fn seconds(secs: f64) -> String {
    format!("{secs:.2} s")
}

fn millis(secs: f64) -> String {
    format!("{:.1} ms", secs * 1e3)
}

fn rate(tokens_per_s: f64) -> String {
    format!("{tokens_per_s:.1}/s")
}
