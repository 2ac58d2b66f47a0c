//! The table of what was measured, and the same as JSON.

use crate::goal::Goal;
use crate::statistics;
use crate::table::{self, Column};
use heg_runtime::exec::HandOvers;
use serde::Serialize;

/// All figures of a run.
#[derive(Serialize)]
pub(super) struct Report {
    model: String,
    rounds: usize,
    pub(super) lines: Vec<Line>,
}

/// A comparison, or what stands for itself.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Line {
    what: String,
    ours: String,
    /// Median.
    ours_median: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hand_overs: Option<HandOverFigures>,
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<String>,
}

/// A machine beside the pair.
#[derive(Debug, Clone, Serialize)]
struct Beside {
    name: String,
    median: f64,
    /// Its time, divided by that of the pair.
    ratio: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct HandOverFigures {
    count: u64,
    median_us: f64,
    p99_us: f64,
}

impl Report {
    pub(super) fn new(model: &str, rounds: usize) -> Self {
        Self {
            model: model.to_owned(),
            rounds,
            lines: Vec::new(),
        }
    }

    /// A line with times of ours in ms.
    pub(super) fn of(&self, what: &str, ours: &str, times_ms: Vec<f64>) -> Line {
        Line {
            what: what.to_owned(),
            ours: ours.to_owned(),
            ours_median: median(&times_ms),
            unit: "ms",
            beside: None,
            hand_overs: None,
            goal: None,
        }
    }

    pub(super) fn add(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Adds how long hand-overs took from one look at them to the next, if there were any.
    pub(super) fn hand_overs(
        &mut self,
        what: &str,
        before: Option<HandOvers>,
        after: Option<HandOvers>,
    ) {
        let Some((before, after)) = before.zip(after) else {
            return;
        };
        let found = after.since(&before);
        if found.count() == 0 {
            return;
        }
        let us = |share| found.quantile_us(share).unwrap_or_default();
        let figures = HandOverFigures {
            count: found.count(),
            median_us: us(0.5),
            p99_us: us(0.99),
        };
        let verdicts = [
            Goal::AtMost(MEDIAN_US).verdict(figures.median_us),
            Goal::AtMost(P99_US).verdict(figures.p99_us),
        ];
        self.lines.push(Line {
            hand_overs: Some(figures),
            goal: Some(verdicts.join(", ")),
            ..self.of(what, "hand-overs", Vec::new())
        });
    }
}

impl Line {
    /// The line with figures of something else than milliseconds.
    pub(super) fn in_unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// The line with a bound on its own figure.
    pub(super) fn held_to(self, goal: Goal) -> Self {
        Self {
            goal: Some(goal.verdict(self.ours_median)),
            ..self
        }
    }

    /// The line with figures of something else beside it, and goals for the ratio.
    pub(super) fn beside(
        &self,
        name: &str,
        figures: Vec<f64>,
        goals: impl IntoIterator<Item = Goal>,
    ) -> Self {
        let median = median(&figures);
        let ratio = median / self.ours_median;
        let verdicts: Vec<String> = goals.into_iter().map(|it| it.verdict(ratio)).collect();
        Self {
            beside: Some(Beside {
                name: name.to_owned(),
                median,
                ratio,
            }),
            goal: (!verdicts.is_empty()).then(|| verdicts.join(", ")),
            ..self.clone()
        }
    }
}

/// The median; NaN without figures.
fn median(figures: &[f64]) -> f64 {
    statistics::median(figures).unwrap_or(f64::NAN)
}

/// Lines as people read them.
pub(super) fn table(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let unit = line.unit;
        let figures = match (&line.beside, line.hand_overs) {
            (Some(beside), _) => format!(
                "{} {:.3} {unit}, {} {:.3} {unit}: {:.3}",
                line.ours, line.ours_median, beside.name, beside.median, beside.ratio
            ),
            (None, Some(found)) => format!(
                "{} {}, median {:.1} us, 99 in 100 {:.1} us",
                found.count, line.ours, found.median_us, found.p99_us
            ),
            (None, None) => format!("{} {:.3} {unit}", line.ours, line.ours_median),
        };
        let goal = line.goal.as_deref().unwrap_or_default();
        text += &table::line(&COLUMNS, [&line.what, &figures, goal]);
    }
    text
}

const COLUMNS: [Column; 3] = [Column::left(0, 48), Column::left(1, 72), Column::left(1, 0)];

/// Longest median of hand-overs, in µs.
const MEDIAN_US: f64 = 10.0;

/// Longest time of 99 in 100 hand-overs, in µs.
const P99_US: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_stands_beside_it_and_its_goal() {
        let mut report = Report::new("tiny", 3);
        let line = report.of("decode", "pair", vec![2.0, 1.0, 5.0]);
        report.add(line.beside("two threads", vec![1.0, 1.9, 2.0], [Goal::AtLeast(0.95)]));
        report.add(line.beside("plain waits", vec![1.0], []));
        let bounded = report.of("memory", "pair", vec![3.0]).in_unit("MB");
        report.add(bounded.held_to(Goal::AtMost(2.0)));
        insta::assert_snapshot!(table(&report.lines));
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["lines"][0]["beside"]["ratio"], 0.95);
    }
}
