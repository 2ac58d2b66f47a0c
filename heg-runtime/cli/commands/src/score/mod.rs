//! `heg score`: the likelihood of a text under a model, and the model's distance from another one.

mod input;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use heg_runtime::RuntimeError;
use heg_runtime::exec::Executor;
use heg_runtime::score::{Passage, RowKind, Scores, score, score_against};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::options::{Machine, print_descents};
use input::Source;

/// Arguments of `heg score`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    source: Source,
    /// Another bundle of the same vocabulary: also print how far this one's distributions are from its
    #[arg(long, value_name = "BUNDLE")]
    against: Option<PathBuf>,
    /// Devices for the other bundle; on the default, nothing is rounded but its weights
    #[arg(
        long,
        value_name = "SOC",
        default_value = "host-cpu-f32",
        requires = "against"
    )]
    against_soc: String,
    /// Which rows to measure
    #[arg(long, value_enum, default_value_t = Rows::Prefill)]
    rows: Rows,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The rows to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rows {
    /// As a prompt is read: in chunks
    Prefill,
    /// As an answer is generated: one token a step, after the tokens before `--from` as a prompt
    Decode,
    /// One after the other
    Both,
}

/// The measured scores. Scores of prefill rows are at the top level, those of decode rows separate; if only decode rows
/// were requested, there is nothing else.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    prefill: Option<Scores>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode: Option<Scores>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let loaded = arguments.machine.open()?;
    let passages = arguments.source.passages(&loaded)?;
    let mut model = arguments.machine.executor_of_rows(&loaded)?;
    let mut other = match &arguments.against {
        Some(path) => {
            let machine = arguments.machine.beside(path, &arguments.against_soc);
            let loaded = machine.open()?;
            let executor = machine.executor_of_rows(&loaded)?;
            Some((machine, loaded, executor))
        }
        None => None,
    };
    model.wait_ready()?;
    print_descents(model.descents().get());
    if let Some((_, _, executor)) = &mut other {
        executor.wait_ready()?;
    }
    let mut measure = |rows: RowKind, name| {
        let against = other.as_mut().map(|(_, _, executor)| executor);
        figures(&mut model, against, &passages, rows, name)
    };
    let (prefill, decode) = match arguments.rows {
        Rows::Prefill => (Some(measure(RowKind::Prefill, "prefill")?), None),
        Rows::Decode => (None, Some(measure(RowKind::Decode, "decode")?)),
        Rows::Both => (
            Some(measure(RowKind::Prefill, "prefill")?),
            Some(measure(RowKind::Decode, "decode")?),
        ),
    };
    arguments.machine.remember(&loaded)?;
    if let Some((machine, loaded, _)) = &other {
        machine.remember(loaded)?;
    }
    print(&Report { prefill, decode }, arguments.json)
}

/// Measures one kind of rows, with a progress bar on a terminal.
fn figures(
    model: &mut Executor,
    against: Option<&mut Executor>,
    passages: &[Passage],
    rows: RowKind,
    name: &'static str,
) -> Result<Scores, RuntimeError> {
    let tokens: usize = passages.iter().map(Passage::scored).sum();
    let style = ProgressStyle::with_template("{msg:8} {bar:30} {pos}/{len} tokens, {elapsed}");
    let bar = ProgressBar::new(tokens as u64).with_message(name);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut watch = |done| bar.set_position(done);
    let figures = match against {
        Some(against) => score_against(model, against, passages, rows, &mut watch),
        None => score(model, passages, rows, &mut watch),
    };
    bar.finish_and_clear();
    figures
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match json {
        true => writeln!(out, "{}", serde_json::to_string(report)?)?,
        false => write!(out, "{}", report.table())?,
    }
    Ok(())
}

impl Report {
    /// Returns a table with a column for each kind of rows.
    fn table(&self) -> String {
        let kinds = [("prefill", self.prefill), ("decode", self.decode)];
        let measured: Vec<(&str, Scores)> = kinds
            .into_iter()
            .filter_map(|(name, figures)| Some((name, figures?)))
            .collect();
        let mut table = String::new();
        for (title, show) in LINES {
            let cells: Option<String> = measured
                .iter()
                .map(|(rows, figures)| Some(format!("{:>12}", show(rows, figures)?)))
                .collect();
            if let Some(cells) = cells {
                table.push_str(&format!("{title:<10}{cells}\n"));
            }
        }
        table
    }
}

/// Formats a cell of the table from the kind of rows and its scores.
type Show = fn(&str, &Scores) -> Option<String>;

/// Lines of the table, each with its title and its cell; `None` if it was not measured.
const LINES: [(&str, Show); 6] = [
    ("rows", |rows, _| Some(rows.to_owned())),
    ("tokens", |_, each| Some(each.tokens.to_string())),
    ("nll", |_, each| Some(format!("{:.5}", each.nll))),
    ("perplexity", |_, each| {
        Some(format!("{:.4}", each.perplexity))
    }),
    ("top1", |_, each| {
        each.top1.map(|share| format!("{share:.4}"))
    }),
    ("kl", |_, each| each.kl.map(|kl| format!("{kl:.6}"))),
];

const EXAMPLES: &str = "\
FILE of --ids has one JSON list of token ids a line, FILE of --text one document, which is cut at the context
length: each piece is scored on its own. The first token of a line or piece is not scored, nothing comes before it.

  tokens      tokens that were scored
  nll         mean negative log likelihood of a token, in nats; perplexity is its exponential
  top1        share of tokens where both models have the same most likely one
  kl          mean KL divergence of this model's distribution from the other's, KL(other || this), in nats

With --json, figures of prefill rows stand at the top level and those of decode rows in `decode`.

Examples:
  heg score model.heg --text book.txt
  heg score w8a16.heg --ids answers.jsonl --from-file prompts.txt --against f32.heg --rows both --json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_column_for_each_kind_of_rows() {
        let alone = Scores {
            tokens: 797,
            nll: 0.69351,
            perplexity: 2.00073,
            top1: None,
            kl: None,
        };
        let compared = Scores {
            top1: Some(0.96110),
            kl: Some(0.0079789),
            ..alone
        };
        let mut report = Report {
            prefill: Some(alone),
            decode: None,
        };
        let mut all = report.table();
        report = Report {
            prefill: Some(compared),
            decode: Some(compared),
        };
        all.push_str(&report.table());
        insta::assert_snapshot!(all, @r"
        rows           prefill
        tokens             797
        nll            0.69351
        perplexity      2.0007
        rows           prefill      decode
        tokens             797         797
        nll            0.69351     0.69351
        perplexity      2.0007      2.0007
        top1            0.9611      0.9611
        kl            0.007979    0.007979
        ");
    }

    #[test]
    fn json_has_prefill_at_the_top_and_decode_apart() {
        let figures = Scores {
            tokens: 2,
            nll: 0.0,
            perplexity: 1.0,
            top1: Some(1.0),
            kl: Some(0.0),
        };
        let report = Report {
            prefill: Some(figures),
            decode: Some(figures),
        };
        insta::assert_snapshot!(serde_json::to_string(&report).unwrap(), @r#"{"tokens":2,"nll":0.0,"perplexity":1.0,"top1":1.0,"kl":0.0,"decode":{"tokens":2,"nll":0.0,"perplexity":1.0,"top1":1.0,"kl":0.0}}"#);
    }
}
