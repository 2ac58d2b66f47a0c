//! The report of bench-peers: medians of all sides' samples, their ratios, and the project's goals.

use super::goals::{Beside, goals};
use super::long::Long;
use super::samples::Samples;
use crate::goal::Goal;
use crate::output;
use crate::precision::Precision;
use crate::provenance::Provenance;
use crate::table::{self, Column};
use anyhow::Result;
use clap::ValueEnum;
use heg_spec::Isa;
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// All samples for one model.
pub(super) struct Report {
    model: String,
    precision: Precision,
    rounds: NonZeroU32,
    /// Instruction set that HEG was restricted to.
    isa: Option<Isa>,
    run: Option<Provenance>,
    pub(super) ours: Samples,
    /// GenAI's samples; empty if it was left out.
    pub(super) genai: Samples,
    /// llama.cpp's samples; empty if it was left out.
    pub(super) llama: Samples,
    /// KL divergence of the measured form from f32, if measured: for prefill rows, and for decode rows.
    pub(super) accuracy: Option<[f64; 2]>,
}

impl Report {
    pub(super) fn new(
        model: &str,
        precision: Precision,
        rounds: NonZeroU32,
        isa: Option<Isa>,
    ) -> Self {
        Self {
            model: model.to_string(),
            precision,
            rounds,
            isa,
            run: None,
            ours: Samples::default(),
            genai: Samples::default(),
            llama: Samples::default(),
            accuracy: None,
        }
    }

    /// The same report, of the run with this provenance.
    pub(super) fn of_run(self, run: Provenance) -> Self {
        Self {
            run: Some(run),
            ..self
        }
    }

    pub(super) fn table(&self) -> String {
        let held = self.isa.map_or(String::new(), |isa| {
            format!(", HEG with {isa} only, the others with all that there is")
        });
        let mut text = format!(
            "{}{held}, all sides in turn, medians of rounds: {}\n\n",
            self.model, self.rounds
        );
        let [to_genai, to_better, goal] = ["to GenAI", "to better", "goal"].map(str::to_owned);
        let names = [
            String::new(),
            format!("HEG {}", self.precision),
            format!("GenAI {}", self.precision.of_genai()),
            format!("llama.cpp {}", self.precision.of_llama()),
            to_genai,
            to_better,
            goal,
        ];
        text += &table::line(&COLUMNS, names);
        for line in self.lines() {
            let figures = self.figures(line);
            let shown = |value: Option<f64>| value.map_or("–".to_owned(), line.show);
            let ratio = |beside| table::shown(figures.ratio(beside), 2);
            let cells = [
                line.title.to_owned(),
                shown(figures.heg),
                shown(figures.genai),
                shown(figures.llama),
                ratio(Beside::Genai),
                ratio(Beside::Better),
                self.verdicts(line, &figures),
            ];
            text += &table::line(&COLUMNS, cells);
        }
        text.push_str(NOTES);
        text
    }

    /// The lines that were measured, and those that each run has.
    fn lines(&self) -> impl Iterator<Item = &'static Line> {
        let is_there = |line: &&Line| !line.is_long() || self.ours.median(line.key).is_some();
        LINES.iter().filter(is_there)
    }

    /// One JSON object per line of the table.
    pub(super) fn json_lines(&self) -> Result<String> {
        output::json_lines(self.lines().map(|line| self.json(line)))
    }

    fn json(&self, line: &Line) -> Value {
        let figures = self.figures(line);
        let [prefill, decode] = match self.accuracy {
            Some(rows) => rows.map(Some),
            None => [None; 2],
        };
        let is_prefill = line.key.starts_with("prefill");
        let goals = self.goals(line, &figures).map(|(beside, goal, ratio)| {
            json!({ "beside": beside.name(), "goal": goal.verdict(ratio), "met": goal.is_met(ratio) })
        });
        json!({
            "run": self.run,
            "rounds": self.rounds,
            "model": self.model,
            "weights": self.precision.to_string(),
            "isa": self.isa.map(Isa::name),
            "name": line.key,
            "heg": figures.heg,
            "genai": figures.genai,
            "llama": figures.llama,
            "ratio": figures.ratio(Beside::Better),
            "limit": figures.limit,
            "accuracy": if is_prefill { prefill } else { decode },
            "goals": goals.collect::<Vec<_>>(),
        })
    }

    fn figures(&self, line: &Line) -> Figures {
        Figures {
            heg: self.ours.median(line.key),
            genai: self.genai.median(line.key),
            llama: self.llama.median(line.key),
            limit: line.limit.and_then(|key| self.ours.median(key)),
            better: line.better,
        }
    }

    /// The goals of a line that can be judged, and their ratios.
    fn goals(
        &self,
        line: &Line,
        figures: &Figures,
    ) -> impl Iterator<Item = (Beside, &'static Goal, f64)> {
        let goals = goals(&self.model, self.precision, line.key).iter();
        goals.filter_map(|(beside, goal)| {
            // With only one side, there is no better of both.
            let is_known = *beside != Beside::Better || figures.has_both_peers();
            let ratio = figures.ratio(*beside).filter(|_| is_known)?;
            Some((*beside, goal, ratio))
        })
    }

    fn verdicts(&self, line: &Line, figures: &Figures) -> String {
        let verdicts = self.goals(line, figures).map(|(beside, goal, ratio)| {
            let verdict = goal.verdict(ratio);
            format!("{} {verdict}", beside.name())
        });
        verdicts.collect::<Vec<_>>().join("; ")
    }
}

const COLUMNS: [Column; 7] = [
    Column::left(0, 40),
    Column::right(1, 13),
    Column::right(1, 13),
    Column::right(1, 14),
    Column::right(1, 9),
    Column::right(1, 9),
    Column::left(2, 0),
];

/// Medians of a line.
struct Figures {
    heg: Option<f64>,
    genai: Option<f64>,
    llama: Option<f64>,
    limit: Option<f64>,
    better: fn(f64, f64) -> f64,
}

impl Figures {
    /// HEG's figure divided by another one; `None` if one was not measured.
    fn ratio(&self, beside: Beside) -> Option<f64> {
        let other = match beside {
            Beside::Genai => self.genai,
            Beside::Llama => self.llama,
            Beside::Better => {
                let measured = [self.genai, self.llama].into_iter().flatten();
                measured.reduce(self.better)
            }
            Beside::Limit => self.limit,
            Beside::Megabyte => Some(1e6),
        };
        Some(self.heg? / other?)
    }

    fn has_both_peers(&self) -> bool {
        self.genai.is_some() && self.llama.is_some()
    }
}

/// The figures that all sides print.
pub(super) const BENCH_KEYS: [&str; 5] = [
    "prefill_tokens_per_s/512",
    "prefill_tokens_per_s/2048",
    "decode_tokens_per_s",
    "batch_decode_tokens_per_s",
    "peak_rss_bytes",
];

/// Time to load, which llama.cpp does not report.
pub(super) const LOAD_KEY: &str = "load_ms";

/// Memory that belongs to no file, of a start with a short prompt.
pub(super) const ANONYMOUS_KEY: &str = "anonymous_bytes";

/// The rate at which a model's weights can be read, if `heg bench` reports it.
pub(super) const DECODE_LIMIT_KEY: &str = "decode_limit_tokens_per_s";

/// A line of the table.
pub(super) struct Line {
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    pub(super) show: fn(f64) -> String,
    /// Selects the better of two figures.
    better: fn(f64, f64) -> f64,
    /// Key of our figure that this one cannot exceed.
    limit: Option<&'static str>,
}

impl Line {
    /// Whether it is of a prompt that has to be asked for.
    fn is_long(&self) -> bool {
        let keys = Long::value_variants().iter().flat_map(|long| long.keys());
        keys.into_iter().any(|key| key == self.key)
    }

    /// A line with tokens per second.
    const fn rate(key: &'static str, title: &'static str) -> Self {
        Self {
            key,
            title,
            show: speed,
            better: f64::max,
            limit: None,
        }
    }

    /// A line with time or memory.
    const fn cost(key: &'static str, title: &'static str, show: fn(f64) -> String) -> Self {
        Self {
            key,
            title,
            show,
            better: f64::min,
            limit: None,
        }
    }
}

pub(super) const LINES: [Line; 15] = [
    Line::rate("prefill_tokens_per_s/512", "prefill of 512 tokens"),
    Line::rate("prefill_tokens_per_s/2048", "prefill of 2048 tokens"),
    Line {
        limit: Some(DECODE_LIMIT_KEY),
        ..Line::rate("decode_tokens_per_s", "decode, one request")
    },
    Line::rate("batch_decode_tokens_per_s", "decode, 8 requests"),
    Line::cost(
        "start_ms",
        "start to first token, 32-token prompt *",
        seconds,
    ),
    Line::cost("process_ms", "the same, whole processes", seconds),
    Line::cost(LOAD_KEY, "load to ready", seconds),
    Line::cost("peak_rss_bytes", "peak resident memory", megabytes),
    Line::cost(
        ANONYMOUS_KEY,
        "of a start: in no file, at its peak",
        megabytes,
    ),
    Line::rate(Long::Agent.keys()[0], "prefill of 8192 tokens"),
    Line::rate(Long::Agent.keys()[1], "decode behind 8192 tokens"),
    Line::cost(Long::Agent.keys()[2], "memory with 8192 tokens", megabytes),
    Line::rate(Long::Chapter.keys()[0], "prefill of 32768 tokens"),
    Line::rate(Long::Chapter.keys()[1], "decode behind 32768 tokens"),
    Line::cost(
        Long::Chapter.keys()[2],
        "memory with 32768 tokens",
        megabytes,
    ),
];

fn speed(tokens_per_s: f64) -> String {
    format!("{tokens_per_s:.1} tok/s")
}

fn seconds(ms: f64) -> String {
    format!("{:.2} s", ms / 1e3)
}

fn megabytes(bytes: f64) -> String {
    format!("{:.0} MB", bytes / 1e6)
}

pub(super) const NOTES: &str = "
Ratios are HEG / GenAI, and HEG / the better of both. GenAI: ContinuousBatchingPipeline with a 2 GB cache, 256 tokens a
step, dynamic split-fuse, no prefix cache; its start is LLMPipeline, the faster of both attention backends. llama.cpp:
llama-bench (the faster of both attentions for each figure; its memory), llama-batched-bench, llama-completion.
* HEG and llama.cpp from before the process exists; GenAI from after Python's start and imports (favours GenAI).
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{LLAMA_1B, SMOLLM2};

    fn report(model: &str) -> Report {
        let mut report = Report::new(model, Precision::EIGHT_BITS, NonZeroU32::MIN, None);
        for line in &LINES {
            report.ours.add(line.key, 90.0);
            report.genai.add(line.key, 100.0);
            if line.key != LOAD_KEY {
                report.llama.add(line.key, 60.0);
            }
        }
        report
    }

    /// The JSON object of a line of the table.
    fn object(report: &Report, key: &str) -> Value {
        let lines = report.json_lines().unwrap();
        let mut objects = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        objects.find(|object| object["name"] == key).unwrap()
    }

    #[test]
    fn the_table_says_ratios_and_goals() {
        insta::assert_snapshot!(report(LLAMA_1B).table());
    }

    #[test]
    fn goals_are_a_models_own() {
        let table = report(SMOLLM2).table();
        assert!(table.contains("GenAI at least 2.80: MISSED; llama.cpp at least 1.15: met"));
        assert!(!report("tiny").table().contains("at least"));
    }

    #[test]
    fn json_has_one_object_for_each_line() {
        let mut report = report(LLAMA_1B);
        report.accuracy = Some([0.25, 0.5]);
        report.ours.add(DECODE_LIMIT_KEY, 95.0);
        assert_eq!(report.json_lines().unwrap().lines().count(), LINES.len());
        let decode = object(&report, "decode_tokens_per_s");
        assert_eq!(decode["heg"], 90.0);
        assert_eq!(decode["ratio"], 0.9);
        assert_eq!(decode["limit"], 95.0);
        assert_eq!(decode["accuracy"], 0.5);
        assert_eq!(decode["goals"][0]["met"], false);
        assert_eq!(decode["goals"][1]["met"], true);
        assert_eq!(decode["goals"][2]["beside"], "the limit");
        assert_eq!(decode["goals"][2]["met"], true);
        assert_eq!(decode["isa"], Value::Null);
        let prefill = object(&report, "prefill_tokens_per_s/512");
        assert_eq!(prefill["limit"], Value::Null);
        assert_eq!(prefill["accuracy"], 0.25);
        // Less memory is better.
        assert_eq!(object(&report, "peak_rss_bytes")["ratio"], 1.5);
        assert_eq!(object(&report, LOAD_KEY)["llama"], Value::Null);
    }

    #[test]
    fn a_side_that_is_left_out_is_judged_by_nothing() {
        let mut report = report(LLAMA_1B);
        report.llama = Samples::default();
        let decode = object(&report, "decode_tokens_per_s");
        assert_eq!(decode["llama"], Value::Null);
        assert_eq!(decode["ratio"], 0.9);
        assert_eq!(decode["goals"].as_array().unwrap().len(), 1);
        let batch = object(&report, "batch_decode_tokens_per_s");
        assert_eq!(batch["goals"], json!([]));
    }
}
