//! The table of days, and the same as JSON.

use super::background::Sums;
use super::day::Sizes;
use super::person::TurnTimes;
use crate::goal::Goal;
use crate::provenance::Provenance;
use crate::statistics::{median, quantile};
use crate::table::{self, Column, shown};
use serde::Serialize;

/// All days of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    run: Provenance,
    sizes: Sizes,
    /// The models for the person and for digests.
    models: [String; 2],
    /// KL of the default form on a real model, as `bench-peers` gives it.
    pub(super) accuracy: Option<[f64; 2]>,
    systems: Vec<Days>,
}

/// The days of a system.
#[derive(Debug, Serialize)]
struct Days {
    name: &'static str,
    days: Vec<Lived>,
}

/// A day on a system.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Lived {
    pub(super) turns: Vec<TurnTimes>,
    pub(super) secs: f64,
    pub(super) done: Sums,
    /// The first request of the background that was refused, with the reason.
    pub(super) refusal: Option<String>,
    /// Resident memory of all processes at its largest, in bytes.
    pub(super) peak_bytes: u64,
}

/// A figure of a day: its name, how to take it, and the goal for its ratio to the best other system.
struct Figure {
    name: &'static str,
    of: fn(&Lived) -> f64,
    digits: usize,
    goal: Option<Goal>,
}

impl Lived {
    fn waits_s(&self) -> Vec<f64> {
        let turns = self.turns.iter();
        turns.map(|turn| turn.wait_ms() / 1e3).collect()
    }

    fn mean_s(&self, of: fn(&TurnTimes) -> f64) -> f64 {
        let sum: f64 = self.turns.iter().map(of).sum();
        sum / 1e3 / self.turns.len() as f64
    }
}

impl Report {
    pub(super) fn new(sizes: Sizes, models: [&String; 2], run: Provenance) -> Self {
        Self {
            run,
            sizes,
            models: models.map(String::clone),
            accuracy: None,
            systems: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, name: &'static str, day: Lived) {
        match self.systems.iter_mut().find(|days| days.name == name) {
            Some(days) => days.days.push(day),
            None => self.systems.push(Days {
                name,
                days: vec![day],
            }),
        }
    }

    /// A line for each figure, with medians of the days and the ratio of the first system to the best of the others.
    pub(super) fn table(&self) -> String {
        let names = self.systems.iter().map(|days| days.name.to_owned());
        let mut text = self.line("", names, ["ratio".to_owned(), "goal".to_owned()]);
        for figure in FIGURES {
            let medians: Vec<Option<f64>> =
                self.systems.iter().map(|it| it.median(&figure)).collect();
            let ratio = figure.ratio(&medians);
            let verdict = ratio
                .zip(figure.goal)
                .map(|(ratio, goal)| goal.verdict(ratio));
            let shown_medians = medians.iter().map(|it| shown(*it, figure.digits));
            let end = [shown(ratio, 2), verdict.unwrap_or_default()];
            text += &self.line(figure.name, shown_medians, end);
        }
        for days in &self.systems {
            text += &days.remarks();
        }
        text
    }

    fn line(
        &self,
        name: &str,
        cells: impl Iterator<Item = String>,
        [ratio, goal]: [String; 2],
    ) -> String {
        let mut columns = vec![Column::left(0, 44)];
        columns.extend(self.systems.iter().map(|_| Column::right(2, 12)));
        columns.extend([Column::right(2, 6), Column::left(2, 0)]);
        let cells = std::iter::once(name.to_owned()).chain(cells);
        table::line(&columns, cells.chain([ratio, goal]))
    }
}

impl Days {
    fn median(&self, figure: &Figure) -> Option<f64> {
        let values: Vec<f64> = self.days.iter().map(figure.of).collect();
        median(&values)
    }

    /// Remarks beside the figures: other answers in another round, and refusals.
    fn remarks(&self) -> String {
        let name = self.name;
        let answers = |day: &Lived| -> Vec<Vec<u32>> {
            day.turns.iter().map(|turn| turn.ids.clone()).collect()
        };
        let mut all = self.days.iter().map(answers);
        let first = all.next();
        let (others, same) = all.fold((0, 0), |(others, same), answers| {
            match Some(&answers) == first.as_ref() {
                true => (others, same + 1),
                false => (others + 1, same),
            }
        });
        let mut text = match (others, same) {
            (0, 0) => String::new(),
            (0, _) => format!("{name}: the same token ids in all rounds\n"),
            _ => format!("{name}: other token ids than in the first round in {others}\n"),
        };
        if let Some(refusal) = self.days.iter().find_map(|day| day.refusal.as_ref()) {
            text += &format!("{name}: background work was refused: {refusal}\n");
        }
        text
    }
}

impl Figure {
    /// The ratio of the first system's to the best of the others', `None` if either is missing.
    fn ratio(&self, medians: &[Option<f64>]) -> Option<f64> {
        let (ours, others) = medians.split_first()?;
        let better = match self.goal {
            Some(Goal::AtLeast(_)) => f64::max,
            _ => f64::min,
        };
        let best = others.iter().flatten().copied().reduce(better)?;
        Some(ours.as_ref()? / best)
    }
}

const FIGURES: [Figure; 9] = [
    Figure {
        name: "a person waits, in all, s",
        of: |day| day.waits_s().iter().sum(),
        digits: 1,
        goal: Some(Goal::AtMost(0.2)),
    },
    Figure {
        name: "for a question, nine of ten within, s",
        of: |day| quantile(&day.waits_s(), 0.9),
        digits: 2,
        goal: Some(Goal::AtMost(0.3)),
    },
    Figure {
        name: "for a search, mean, s",
        of: |day| day.mean_s(|turn| turn.search_ms),
        digits: 3,
        goal: None,
    },
    Figure {
        name: "for a tool's call, mean, s",
        of: |day| day.mean_s(|turn| turn.call_ms),
        digits: 2,
        goal: None,
    },
    Figure {
        name: "for an answer's first token, mean, s",
        of: |day| day.mean_s(|turn| turn.first_ms),
        digits: 2,
        goal: None,
    },
    Figure {
        name: "for the start of a killed system, s",
        of: |day| day.turns.iter().map(|turn| turn.start_ms / 1e3).sum(),
        digits: 2,
        goal: None,
    },
    Figure {
        name: "background: tokens read and written per s",
        of: |day| day.done.tokens as f64 / day.secs,
        digits: 0,
        goal: Some(Goal::AtLeast(1.0)),
    },
    Figure {
        name: "background: passages with a vector per s",
        of: |day| day.done.passages as f64 / day.secs,
        digits: 1,
        goal: Some(Goal::AtLeast(1.0)),
    },
    Figure {
        name: "resident memory at its largest, MB",
        of: |day| day.peak_bytes as f64 / 1e6,
        digits: 0,
        goal: Some(Goal::AtMost(0.6)),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn lived(factor: f64, ids: &[u32]) -> Lived {
        let turn = |number: usize| TurnTimes {
            start_ms: if number == 5 { 900.0 * factor } else { 0.0 },
            search_ms: 40.0 * factor,
            call_ms: 1000.0 * factor,
            first_ms: 300.0 * factor,
            answer_ms: 4000.0 * factor,
            ids: ids.to_vec(),
        };
        Lived {
            turns: (0..10).map(turn).collect(),
            secs: 60.0 * factor,
            done: Sums {
                tokens: 60_000,
                passages: 300,
            },
            refusal: None,
            peak_bytes: (2e9 * factor) as u64,
        }
    }

    #[test]
    fn days_stand_beside_each_other() {
        let run = Provenance {
            date: "2026-11-28".to_owned(),
            commit: "abc".to_owned(),
            machine: "two cores".to_owned(),
        };
        let sizes = Sizes {
            agents: 3,
            turns: 10,
            instructions: 10_000,
            seed: 0,
        };
        let model = "m".to_owned();
        let mut report = Report::new(sizes, [&model, &model], run);
        report.add("HEG", lived(1.0, &[1, 2]));
        report.add("other", lived(8.0, &[1, 2]));
        report.add("HEG", lived(1.2, &[1, 2]));
        let refused = Lived {
            refusal: Some("the server answered 429: no room".to_owned()),
            ..lived(8.5, &[1, 3])
        };
        report.add("other", refused);
        insta::assert_snapshot!(report.table());
    }
}
