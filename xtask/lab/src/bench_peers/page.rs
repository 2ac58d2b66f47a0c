//! `cargo xtask performance`: the page of performance, made of what `bench-peers --json` wrote. Nothing on it is typed
//! by hand, and each table has the day, the commit and the machine of its figures.

use super::report::{LINES, Line, NOTES};
use crate::provenance::Provenance;
use crate::table::{self, Markdown};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::fail::Fail;
use xtask::workspace::root;

/// Arguments of `cargo xtask performance`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Reports that `bench-peers --json FILE` wrote, in the order of the page
    #[arg(value_name = "FILE", required = true)]
    reports: Vec<PathBuf>,
    /// The page [default: docs/performance.md]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut page = HEAD.to_owned();
    for file in &args.reports {
        page.push_str(&section(&read(file)?)?);
    }
    let _ = write!(page, "\n## How it was measured\n{NOTES}");
    let output = args.output.clone();
    let output = output.unwrap_or_else(|| root().join("docs/performance.md"));
    fs::write(&output, page)
        .with_context(|| Fail::environment(format!("cannot write `{}`", output.display())))
}

/// One line of a report, as `bench-peers --json` writes it.
#[derive(Debug, Deserialize)]
struct Measured {
    run: Provenance,
    rounds: u32,
    model: String,
    weights: String,
    isa: Option<String>,
    name: String,
    heg: Option<f64>,
    genai: Option<f64>,
    llama: Option<f64>,
    limit: Option<f64>,
    accuracy: Option<f64>,
}

fn read(file: &Path) -> Result<Vec<Measured>> {
    let shown = file.display();
    let text = fs::read_to_string(file)
        .with_context(|| Fail::input(format!("cannot read the report `{shown}`")))?;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let measured = serde_json::from_str(line).with_context(|| {
            let what = format!(
                "line {} of `{shown}` is not one of bench-peers --json",
                index + 1
            );
            Fail::input(what)
        })?;
        lines.push(measured);
    }
    Ok(lines)
}

/// The table of a report.
fn section(lines: &[Measured]) -> Result<String> {
    let first = lines
        .first()
        .ok_or_else(|| Fail::input("a report has no lines"))?;
    let Provenance {
        date,
        commit,
        machine,
    } = &first.run;
    let held = first.isa.as_deref().map_or(String::new(), |isa| {
        format!(" HEG was held to {isa}; the others had all that there is.")
    });
    let mut table = Markdown::new(COLUMNS);
    for line in &LINES {
        if let Some(measured) = lines.iter().find(|measured| measured.name == line.key) {
            table.row(row(line, measured));
        }
    }
    Ok(format!(
        "\n## {}, {}\n\n{date}, commit `{commit}`, {machine}. Medians of {} rounds.{held}\n\n{}",
        first.model,
        first.weights,
        first.rounds,
        table.text()
    ))
}

const COLUMNS: [&str; 8] = [
    "",
    "HEG",
    "GenAI",
    "llama.cpp",
    "HEG to GenAI",
    "to llama.cpp",
    "to the limit",
    "KL from f32",
];

fn row(line: &Line, measured: &Measured) -> [String; COLUMNS.len()] {
    let shown = |figure: Option<f64>| figure.map_or("–".to_owned(), line.show);
    let ratio = |other: Option<f64>| {
        let both = measured.heg.zip(other);
        table::shown(both.map(|(heg, other)| heg / other), 2)
    };
    [
        line.title.replace('*', "\\*"),
        shown(measured.heg),
        shown(measured.genai),
        shown(measured.llama),
        ratio(measured.genai),
        ratio(measured.llama),
        ratio(measured.limit),
        table::shown(measured.accuracy, 5),
    ]
}

const HEAD: &str = "\
# Performance

Made by `cargo xtask performance` from reports of `cargo xtask bench-peers`; do not edit it.

All sides ran the same weights in the same run, in turn, each measurement in a process of its own. Higher is better for
tokens per second, lower for times and memory. The limit is the rate at which the same threads merely read the weights.
KL is the divergence from the model in f32 of the same build and settings, over answers of SmolLM2-135M-Instruct.
";

const AFTER_HELP: &str = "\
Examples:
  cargo xtask bench-peers --json 1b.jsonl
  cargo xtask bench-peers --model smollm2-135m-instruct --json smollm2.jsonl
  cargo xtask performance 1b.jsonl smollm2.jsonl";

#[cfg(test)]
mod tests {
    use super::super::report::Report;
    use super::*;
    use crate::precision::Precision;
    use std::num::NonZeroU32;

    fn provenance() -> Provenance {
        Provenance {
            date: "2026-11-24".to_owned(),
            commit: "0123456789".to_owned(),
            machine: "Example CPU, 2 cores, avx2".to_owned(),
        }
    }

    #[test]
    fn the_page_shows_what_the_report_wrote() {
        let rounds = NonZeroU32::MIN;
        let mut report =
            Report::new("tiny", Precision::EIGHT_BITS, rounds, None).of_run(provenance());
        report.ours.add("decode_tokens_per_s", 90.0);
        report.ours.add("decode_limit_tokens_per_s", 100.0);
        report.genai.add("decode_tokens_per_s", 60.0);
        report.accuracy = Some([0.25, 0.5]);
        let lines = report.json_lines().unwrap();
        let lines: Vec<Measured> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        insta::assert_snapshot!(section(&lines).unwrap());
    }

    #[test]
    fn a_file_of_something_else_is_refused_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "{}\n").unwrap();
        let error = read(file.path()).unwrap_err();
        assert!(error.to_string().starts_with("line 1 of"), "{error}");
        assert!(section(&[]).is_err());
    }
}
