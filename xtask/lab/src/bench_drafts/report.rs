//! Tables and JSON of the measurements.

use super::replay::Replay;
use crate::output::json_lines;
use crate::table::{self, Column};
use anyhow::Result;
use heg_sim::DraftRecord;
use serde::Serialize;
use std::fmt::Write;

/// The measurement of a method on a data set.
pub(super) struct Measured {
    pub(super) method: String,
    pub(super) replay: Replay,
    pub(super) bytes_per_history_token: Option<f64>,
}

/// Figures of a method on a data set.
#[derive(Serialize)]
struct Figures {
    data: String,
    method: String,
    tokens_per_verification: f64,
    drafted_per_verification: f64,
    draft_us_median: f64,
    draft_us_p99: f64,
    bytes_per_history_token: Option<f64>,
}

/// The table of a data set, and the tokens per verification of its parts.
pub(super) fn table(data: &str, measured: &[Measured]) -> String {
    let all: Vec<Vec<DraftRecord>> = measured
        .iter()
        .map(|it| it.replay.records(data, &it.method))
        .collect();
    let Some([whole, parts @ ..]) = all.first().map(Vec::as_slice) else {
        return String::new();
    };
    let mut text = format!(
        "{data}: {} answers of {} tokens to prompts of {}, on average\n\n",
        whole.answers, whole.answer_tokens, whole.prompt_tokens
    );
    let heads = [
        [
            "",
            "tokens per",
            "drafted",
            "draft, us",
            "p99, us",
            "history, B",
        ],
        ["", "verification", "", "", "", "per token"],
    ];
    text.extend(heads.map(|names| table::line(&COLUMNS, names)));
    for (measured, records) in measured.iter().zip(&all) {
        let Some(record) = records.first() else {
            continue;
        };
        let bytes = measured.bytes_per_history_token;
        let cells = [
            measured.method.clone(),
            format!("{:.2}", record.tokens_per_verification()),
            format!("{:.1}", record.drafted_per_verification()),
            format!("{:.1}", measured.replay.draft_us(50)),
            format!("{:.1}", measured.replay.draft_us(99)),
            bytes.map_or("-".to_owned(), |bytes| format!("{bytes:.1}")),
        ];
        text += &table::line(&COLUMNS, cells);
    }
    for (at, part) in parts.iter().enumerate() {
        let tokens = all.iter().filter_map(|records| records.get(at + 1));
        let tokens = tokens.map(|it| format!("{:.2}", it.tokens_per_verification()));
        let tokens: Vec<String> = tokens.collect();
        let _ = writeln!(text, "  {}: {}", part.data, tokens.join(", "));
    }
    text.push('\n');
    text
}

const COLUMNS: [Column; 6] = [
    Column::left(0, 22),
    Column::right(0, 12),
    Column::right(0, 10),
    Column::right(0, 12),
    Column::right(0, 10),
    Column::right(0, 16),
];

/// The report on all data sets.
pub(super) struct Report {
    tokenizer: String,
    data: Vec<String>,
    figures: Vec<Figures>,
    records: Vec<DraftRecord>,
}

impl Report {
    /// Makes a report on files with tokens of the tokenizer with this name, except for those with their own.
    pub(super) fn new(tokenizer: String) -> Self {
        Self {
            tokenizer,
            data: Vec::new(),
            figures: Vec::new(),
            records: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, data: &str, measured: &[Measured]) {
        self.data.push(data.to_owned());
        for it in measured {
            let records = it.replay.records(data, &it.method);
            if let Some(record) = records.first() {
                self.figures.push(Figures {
                    data: data.to_owned(),
                    method: it.method.clone(),
                    tokens_per_verification: record.tokens_per_verification(),
                    drafted_per_verification: record.drafted_per_verification(),
                    draft_us_median: it.replay.draft_us(50),
                    draft_us_p99: it.replay.draft_us(99),
                    bytes_per_history_token: it.bytes_per_history_token,
                });
            }
            self.records.extend(records);
        }
    }

    /// Adds the records of a variant that is not among the figures.
    pub(super) fn add_records(&mut self, data: &str, method: &str, replay: &Replay) {
        let known = |it: &DraftRecord| it.data == data && it.method == method;
        if !self.records.iter().any(known) {
            self.records.extend(replay.records(data, method));
        }
    }

    /// Figures and records as JSON, one per line, so that files can be compared.
    pub(super) fn json(&self) -> Result<String> {
        Ok(format!(
            "{{\"source\":{},\n\"figures\":[\n{}\n],\n\"records\":[\n{}\n]}}\n",
            serde_json::to_string(&self.source())?,
            lines(&self.figures)?,
            lines(&self.records)?
        ))
    }

    /// The records alone.
    pub(super) fn records_json(&self) -> Result<String> {
        Ok(format!(
            "{{\"source\":{},\n\"records\":[\n{}\n]}}\n",
            serde_json::to_string(&self.source())?,
            lines(&self.records)?
        ))
    }

    fn source(&self) -> String {
        format!(
            "cargo xtask bench-drafts over {}; tokens by {}, or the tokenizer beside the file",
            self.data.join(", "),
            self.tokenizer
        )
    }
}

/// Values as the elements of a JSON array, one a line.
fn lines<T: Serialize>(items: &[T]) -> Result<String> {
    Ok(json_lines(items)?.trim_end().replace('\n', ",\n"))
}

#[cfg(test)]
mod tests {
    use super::super::data::{DataSet, Exchange};
    use super::super::methods::methods;
    use super::super::replay::replay;
    use super::*;
    use heg_sim::DraftRecords;

    /// Twenty answers that repeat their prompts and each other.
    fn measured() -> Vec<Measured> {
        let exchange = |at: u32| Exchange {
            prompt: vec![10, 11, 12, 100 + at, 101 + at, 102 + at, 13],
            answer: vec![12, 100 + at, 101 + at, 102 + at, 20, 21, 22, 23, 24, 25],
            part: Some(if at.is_multiple_of(2) { "even" } else { "odd" }.to_owned()),
            likely: None,
        };
        let data = DataSet {
            name: "data".to_owned(),
            exchanges: (0..20).map(exchange).collect(),
        };
        let measure = |mut method: Box<dyn super::super::replay::Method>| Measured {
            replay: replay(&data, method.as_mut()),
            method: method.name(),
            bytes_per_history_token: method.bytes_per_history_token(),
        };
        methods().into_iter().map(measure).collect()
    }

    #[test]
    fn what_is_written_the_simulator_reads() {
        let mut report = Report::new("smollm2".to_owned());
        report.add("data", &measured());
        let records = DraftRecords::parse(&report.records_json().unwrap()).unwrap();
        let with_figures = DraftRecords::parse(&report.json().unwrap()).unwrap();
        assert_eq!(records, with_figures);
        assert_eq!(records.records, report.records);
        assert_eq!(records.records.len(), 5 * 3);
        let tokens = |method| {
            let record = records.find("data/odd", method).unwrap();
            record.tokens_per_verification()
        };
        assert!(tokens("chain of 16") > tokens("SAM of 16"));
        assert!(tokens("tree of 32") >= tokens("chain of 16"));
    }

    #[test]
    fn the_table_has_a_line_for_each_method_and_part() {
        let text = table("data", &measured());
        assert!(text.starts_with("data: 20 answers of 10 tokens to prompts of 7, on average\n"));
        for line in [
            "PLD of 10",
            "SAM of 16",
            "chain of 16",
            "tree of 32",
            "  data/even: ",
        ] {
            assert!(text.lines().any(|it| it.starts_with(line)), "{text}");
        }
    }
}
