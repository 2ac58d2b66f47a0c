//! The table of what was measured, and the same as JSON.

use crate::goal::Goal;
use crate::statistics;
use crate::table::{self, Column};
use serde::Serialize;
use std::path::Path;

/// All figures of a run.
#[derive(Serialize)]
pub(crate) struct Report {
    bundle: String,
    pub(crate) lines: Vec<Line>,
}

/// Figures of ours, and of something else beside them.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Line {
    what: String,
    ours: String,
    /// Median.
    median: f64,
    least: f64,
    most: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
    /// In words.
    goals: Vec<String>,
}

/// The other side of a comparison.
#[derive(Debug, Clone, Serialize)]
struct Beside {
    name: String,
    median: f64,
    /// Its figure, divided by ours.
    ratio: f64,
}

impl Report {
    pub(crate) fn new(bundle: &Path) -> Self {
        let name = bundle.file_name().unwrap_or_default().to_string_lossy();
        Self {
            bundle: name.into_owned(),
            lines: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, line: Line) {
        self.lines.push(line);
    }
}

impl Line {
    /// A line with times of ours in ms.
    pub(crate) fn of(what: &str, ours: &str, figures: Vec<f64>) -> Self {
        let end = |pick: fn(f64, f64) -> f64| figures.iter().copied().reduce(pick);
        Self {
            what: what.to_owned(),
            ours: ours.to_owned(),
            median: median(&figures),
            least: end(f64::min).unwrap_or(f64::NAN),
            most: end(f64::max).unwrap_or(f64::NAN),
            unit: "ms",
            beside: None,
            goals: Vec::new(),
        }
    }

    /// The line with figures of something else than milliseconds.
    pub(crate) fn in_unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// The line with a bound on its own figure.
    pub(crate) fn held_to(self, goal: Goal) -> Self {
        let verdict = goal.verdict(self.median);
        self.judged(verdict)
    }

    /// The line with a goal and whether it is met, in words.
    pub(crate) fn judged(mut self, verdict: String) -> Self {
        self.goals.push(verdict);
        self
    }

    /// The line with figures of something else beside it, and goals for the ratio.
    pub(crate) fn beside(
        mut self,
        name: &str,
        figures: Vec<f64>,
        goals: impl IntoIterator<Item = Goal>,
    ) -> Self {
        let median = median(&figures);
        let ratio = median / self.median;
        let verdicts = goals.into_iter().map(|goal| goal.verdict(ratio));
        self.goals.extend(verdicts);
        self.beside = Some(Beside {
            name: name.to_owned(),
            median,
            ratio,
        });
        self
    }
}

/// The median; NaN without figures.
fn median(figures: &[f64]) -> f64 {
    statistics::median(figures).unwrap_or(f64::NAN)
}

/// Lines as people read them.
pub(crate) fn table(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let unit = line.unit;
        let mut figures = format!(
            "{} {:.1} {unit} ({:.1} to {:.1})",
            line.ours, line.median, line.least, line.most
        );
        if let Some(beside) = &line.beside {
            figures += &format!(
                ", {} {:.1} {unit}: {:.3}",
                beside.name, beside.median, beside.ratio
            );
        }
        text += &table::line(&COLUMNS, [&line.what, &figures, &line.goals.join(", ")]);
    }
    text
}

const COLUMNS: [Column; 3] = [Column::left(0, 44), Column::left(1, 90), Column::left(1, 0)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_was_met() {
        let kept = Line::of(
            "first token, 4096 of 4128 tokens kept",
            "in memory",
            vec![210.0, 190.0, 230.0],
        );
        let kept = kept.held_to(Goal::AtMost(250.0));
        let written = Line::of("written in a round", "kept", vec![134.2]).in_unit("MB");
        let token = Line::of("a token", "kept", vec![30.0]);
        let lines = [
            kept.beside("read again", vec![9000.0], []),
            token.beside("not kept", vec![28.0], [Goal::AtLeast(0.97)]),
            written,
        ];
        insta::assert_snapshot!(table(&lines));
    }
}
