//! The table of all attacks, one line each, and the same data as JSON.

use super::attack::Attack;
use super::measure::Seen;
use super::scene::Became;
use super::verdict::{Criterion, Latency, criteria, over_baseline_mib, over_budget_mib};
use crate::table::{self, Column};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// All figures of a run.
#[derive(Default, Serialize)]
pub(super) struct Report {
    heg: String,
    rounds: usize,
    attacks: Vec<Line>,
}

/// An attack and its results.
#[derive(Debug, Clone, Serialize)]
struct Line {
    name: &'static str,
    script: &'static str,
    about: &'static str,
    /// The sender's requests by their outcome: their number, and the longest in s.
    sender: BTreeMap<String, Ends>,
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<Pair>,
    /// The largest memory in MiB, above the server's own, and above that plus the budgets.
    memory: Option<[f64; 2]>,
    /// Processor time in the 200 ms that begin 100 ms after the sender has gone; the longest of all rounds.
    gone_busy_ms: Option<f64>,
    criteria: Vec<Criterion>,
}

/// Requests with the same outcome.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Ends {
    requests: usize,
    longest_s: f64,
}

/// The other client alone and beside the attack.
#[derive(Debug, Clone, Copy, Serialize)]
struct Pair {
    alone: Latency,
    beside: Latency,
}

impl Report {
    pub(super) fn new(heg: &str, rounds: usize) -> Self {
        Self {
            heg: heg.to_owned(),
            rounds,
            attacks: Vec::new(),
        }
    }

    /// Adds an attack, and returns its table line.
    pub(super) fn add(&mut self, attack: &Attack, seen: &Seen) -> String {
        let mut sender: BTreeMap<String, Ends> = BTreeMap::new();
        for sent in &seen.sent {
            let ends = sender.entry(end_name(&sent.became)).or_default();
            ends.requests += 1;
            ends.longest_s = ends.longest_s.max(sent.seconds);
        }
        let line = Line {
            name: attack.name,
            script: attack.script,
            about: attack.about,
            sender,
            other: (!seen.beside.is_empty()).then(|| Pair {
                alone: Latency::of(&seen.alone),
                beside: Latency::of(&seen.beside),
            }),
            memory: (seen.peak_bytes > 0).then(|| [over_baseline_mib(seen), over_budget_mib(seen)]),
            gone_busy_ms: seen.gone_busy_ms.iter().copied().reduce(f64::max),
            criteria: criteria(attack, seen),
        };
        let text = line.text();
        self.attacks.push(line);
        text
    }

    /// Attacks with a missed goal.
    pub(super) fn failed(&self) -> Vec<&'static str> {
        let failed = self.attacks.iter().filter(|line| !line.is_kept());
        failed.map(|line| line.name).collect()
    }

    /// The table, followed by each missed goal.
    pub(super) fn table(&self) -> String {
        let mut text = header();
        text.extend(self.attacks.iter().map(Line::text));
        for line in &self.attacks {
            for criterion in line.criteria.iter().filter(|it| !it.kept) {
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{} ({}): {}: {}",
                    line.name, line.script, criterion.name, criterion.seen
                );
            }
        }
        text
    }
}

fn end_name(became: &Became) -> String {
    match became {
        Became::Answered { status, .. } => status.to_string(),
        Became::Cut => "cut".to_owned(),
        Became::Waiting => "waiting".to_owned(),
    }
}

/// Returns the names of the table's columns.
pub(super) fn header() -> String {
    let names = [
        "attack",
        "sender got (longest)",
        "other: median, P99 alone -> beside",
        "MiB over own, budgets",
        "gone",
        "goals",
    ];
    table::line(&COLUMNS, names)
}

const COLUMNS: [Column; 6] = [
    Column::left(0, 18),
    Column::left(1, 31),
    Column::left(1, 39),
    Column::left(1, 22),
    Column::left(1, 6),
    Column::left(1, 0),
];

impl Line {
    fn is_kept(&self) -> bool {
        self.criteria.iter().all(|criterion| criterion.kept)
    }

    fn text(&self) -> String {
        let ends = self.sender.iter();
        let ends: Vec<String> = ends
            .map(|(name, ends)| format!("{} x {name} ({:.1} s)", ends.requests, ends.longest_s))
            .collect();
        let other = self
            .other
            .map_or_else(String::new, |Pair { alone, beside }| {
                format!(
                    "{:.1}, {:.1} -> {:.1}, {:.1} ms",
                    alone.median_ms, alone.p99_ms, beside.median_ms, beside.p99_ms
                )
            });
        let memory = self.memory.map_or_else(String::new, |[own, budgets]| {
            format!("{own:.0}, {budgets:+.0}")
        });
        let gone = self
            .gone_busy_ms
            .map_or_else(String::new, |ms| format!("{ms:.0} ms"));
        let (name, ends) = (self.name.to_owned(), ends.join(", "));
        let cells = [name, ends, other, memory, gone, self.verdict()];
        table::line(&COLUMNS, cells)
    }

    /// The missed goals, or a statement that there are none.
    fn verdict(&self) -> String {
        let mut missed: Vec<&str> = self
            .criteria
            .iter()
            .filter(|it| !it.kept)
            .map(|it| it.name)
            .collect();
        missed.dedup();
        match missed.as_slice() {
            [] => format!("{} kept", self.criteria.len()),
            missed => format!("MISSED {}", missed.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::attack::Finding;
    use super::super::other::Block;
    use super::super::scene::Sent;
    use super::*;

    #[test]
    fn a_line_says_what_happened_and_which_goals_were_missed() {
        let block = |ms: f64| Block {
            times_ms: vec![ms; 3],
            failures: Vec::new(),
        };
        let answered = |status, seconds| Sent {
            seconds,
            became: Became::Answered {
                status,
                reason: "too large".to_owned(),
            },
        };
        let bad = Seen {
            alone: vec![block(2.0)],
            beside: vec![block(2000.0)],
            sent: vec![answered(400, 2.0), answered(400, 2.1), answered(200, 0.1)],
            findings: vec![Finding::new("roles stay text", false, "3 tokens more")],
            baseline_bytes: 40 << 20,
            peak_bytes: 1240 << 20,
            gone_busy_ms: vec![10.0, 200.0],
            died: None,
        };
        let good = Seen {
            beside: vec![block(2.1)],
            findings: Vec::new(),
            peak_bytes: 41 << 20,
            gone_busy_ms: vec![0.0],
            ..bad.clone()
        };
        let attack = Attack::beside("a-bomb", "12", "a schema", |_| {});
        let mut report = Report::new("heg", 3);
        let line = report.add(&attack, &bad);
        assert!(
            line.trim_end()
                .ends_with("MISSED memory, others, gone, steps"),
            "{line}"
        );
        let line = report.add(&Attack::beside("again", "12", "it", |_| {}), &good);
        assert!(line.trim_end().ends_with("5 kept"), "{line}");
        assert_eq!(report.failed(), ["a-bomb"]);
        insta::assert_snapshot!(report.table());
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["attacks"][0]["sender"]["400"]["requests"], 2);
    }
}
