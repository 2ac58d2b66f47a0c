//! An explanation as a text diagram.

use std::fmt::Write as _;

use heg_sched::Micros;

use super::words::millis;
use super::{Explanation, Stretch, percent_of};

impl Explanation {
    /// Draws the time as a diagram with a row for each cause, `columns` wide.
    pub fn picture(&self, columns: usize) -> String {
        let mut text = String::new();
        text.push_str(&self.first_token.picture("first token", columns));
        let answer = self.answer.as_ref();
        if let Some(answer) = answer.filter(|answer| answer.time() > Micros(0)) {
            text.push('\n');
            text.push_str(&answer.picture("answer", columns));
        }
        text
    }
}

impl Stretch {
    fn picture(&self, title: &str, columns: usize) -> String {
        let total = self.time().0;
        let mut text = String::new();
        let line = "─".repeat(columns);
        let _ = writeln!(
            text,
            "├{line}┤ {} to the end of the {title}",
            millis(self.time())
        );
        for (share, of) in self.shares.iter().zip(0..ROWS_MAX) {
            let intervals = || self.intervals.iter().filter(move |it| it.share == of);
            let row = (0..columns as u64).map(|column| {
                let edge = |column: u64| Micros(self.start.0 + share_of(total, column, columns));
                let (from, to) = (edge(column), edge(column + 1));
                let within = intervals().map(|it| it.end.min(to).since(it.start.max(from)).0);
                match within.sum::<u64>() {
                    0 => '·',
                    most if most >= to.since(from).0.div_ceil(2) => '█',
                    _ => '▒',
                }
            });
            let row: String = row.collect();
            let percent = percent_of(self.time(), share.time);
            let _ = writeln!(
                text,
                " {row}  {:>8} {percent:>3}% {}",
                millis(share.time),
                share.text
            );
        }
        text
    }
}

/// Maximum number of causes with a row. Chosen: the others take next to no time.
const ROWS_MAX: usize = 12;

/// Returns the part of `total` before a column.
fn share_of(total: u64, column: u64, columns: usize) -> u64 {
    let part = u128::from(total) * u128::from(column) / (columns.max(1) as u128);
    u64::try_from(part).unwrap_or(u64::MAX)
}
