//! The table of vectors of texts, and the same as JSON.

use super::accuracy::{Nearness, TEXTS};
use crate::goal::Goal;
use crate::provenance::Provenance;
use crate::statistics::median;
use crate::table::{self, Column, shown};
use serde::Serialize;

/// All figures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    run: Provenance,
    lines: Vec<Line>,
    nearness: Vec<(&'static str, Nearness)>,
}

/// A figure of each system.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    unit: Unit,
    /// The samples of each system, the first one's being ours.
    sides: Vec<(&'static str, Vec<f64>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Unit {
    TextsPerSecond,
    Milliseconds,
}

impl Report {
    pub(super) fn new(run: Provenance) -> Self {
        Self {
            run,
            lines: Vec::new(),
            nearness: Vec::new(),
        }
    }

    /// Adds a rate in texts a second.
    pub(super) fn add(&mut self, line: &str, side: &'static str, texts_per_s: f64) {
        self.sample(line, Unit::TextsPerSecond, side, texts_per_s);
    }

    /// Adds a start's time to its first vector.
    pub(super) fn add_start(&mut self, side: &'static str, ms: f64) {
        let line = "from exec to the first vector, ms";
        self.sample(line, Unit::Milliseconds, side, ms);
    }

    /// Adds a system's distance from f32.
    pub(super) fn add_nearness(&mut self, side: &'static str, nearness: Nearness) {
        self.nearness.push((side, nearness));
    }

    fn sample(&mut self, name: &str, unit: Unit, side: &'static str, value: f64) {
        let at = self.lines.iter().position(|line| line.name == name);
        let at = at.unwrap_or_else(|| {
            self.lines.push(Line {
                name: name.to_owned(),
                unit,
                sides: Vec::new(),
            });
            self.lines.len() - 1
        });
        let Some(line) = self.lines.get_mut(at) else {
            return;
        };
        match line.sides.iter_mut().find(|(known, _)| *known == side) {
            Some((_, samples)) => samples.push(value),
            None => line.sides.push((side, vec![value])),
        }
    }

    pub(super) fn table(&self) -> String {
        let sides = self.lines.first().map_or(&[][..], |line| &line.sides);
        let mut columns = vec![Column::left(0, 34)];
        columns.extend(sides.iter().map(|_| Column::right(2, 10)));
        columns.extend([Column::right(2, 9), Column::left(2, 0)]);
        let names = sides.iter().map(|(name, _)| (*name).to_owned());
        let head = std::iter::once(String::new()).chain(names);
        let mut text = table::line(&columns, head.chain(["to better".into(), "goal".into()]));
        for line in &self.lines {
            text += &table::line(&columns, line.cells());
        }
        for (at, (side, near)) in self.nearness.iter().enumerate() {
            let Nearness { least, mean } = near;
            text += &format!("{side}: cosine to f32 over {TEXTS} texts: ");
            text += &format!("least {least:.6}, mean {mean:.6}");
            text += match (at, *least >= COSINE) {
                (0, true) => " (at least 0.9995: met)\n",
                (0, false) => " (at least 0.9995: MISSED)\n",
                _ => "\n",
            };
        }
        text
    }
}

impl Line {
    fn cells(&self) -> Vec<String> {
        let medians: Vec<Option<f64>> = self.sides.iter().map(|(_, it)| median(it)).collect();
        let (better, goal): (fn(f64, f64) -> f64, _) = match self.unit {
            Unit::TextsPerSecond => (f64::max, Goal::AtLeast(1.3)),
            Unit::Milliseconds => (f64::min, Goal::AtMost(30.0)),
        };
        let (ours, others) = match medians.split_first() {
            Some((ours, others)) => (*ours, others),
            None => (None, &[][..]),
        };
        let best = others.iter().flatten().copied().reduce(better);
        let ratio = ours.zip(best).map(|(ours, best)| ours / best);
        let judged = match self.unit {
            Unit::TextsPerSecond => ratio,
            Unit::Milliseconds => ours,
        };
        let mut cells = vec![self.name.clone()];
        cells.extend(medians.iter().map(|median| shown(*median, 1)));
        cells.push(shown(ratio, 2));
        cells.push(judged.map_or(String::new(), |judged| goal.verdict(judged)));
        cells
    }
}

/// The project's goal for the vectors of ours.
const COSINE: f64 = 0.9995;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_stand_beside_each_other() {
        let mut report = Report::new(Provenance {
            date: "2026-11-28".to_owned(),
            commit: "abc".to_owned(),
            machine: "two cores".to_owned(),
        });
        for (side, rate) in [("HEG", 900.0), ("GenAI", 600.0), ("llama.cpp", 500.0)] {
            report.add("16 tokens, 1 cores: texts/s", side, rate);
            report.add("128 tokens, 1 cores: texts/s", side, 100.0);
            report.add_start(side, 30_000.0 / rate);
        }
        for (side, least) in [("HEG", 0.9987), ("GenAI", 0.9996)] {
            let mean = 0.9996;
            report.add_nearness(side, Nearness { least, mean });
        }
        insta::assert_snapshot!(report.table());
    }
}
