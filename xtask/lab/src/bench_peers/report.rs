//! What bench-peers says: medians of both sides' samples, their ratios, and the goals of the
//! project beside them.

use crate::goal::Goal;
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// All samples of one side.
#[derive(Default)]
pub(super) struct Samples {
    by_key: BTreeMap<&'static str, Vec<f64>>,
}

impl Samples {
    pub(super) fn add(&mut self, key: &'static str, value: f64) {
        self.by_key.entry(key).or_default().push(value);
    }

    /// Adds the numbers that `measured` has under `keys`, which are paths in it; a missing one is an error.
    pub(super) fn add_all(&mut self, measured: &Value, keys: &[&'static str]) -> Result<()> {
        for key in keys {
            let number = measured.pointer(&format!("/{key}")).and_then(Value::as_f64);
            let number = number.with_context(|| format!("a measurement has no `{key}`"))?;
            self.add(key, number);
        }
        Ok(())
    }

    fn median(&self, key: &str) -> f64 {
        let mut all = self.by_key.get(key).cloned().unwrap_or_default();
        all.sort_by(f64::total_cmp);
        let half = all.len() / 2;
        match (all.len() % 2, all.get(half.wrapping_sub(1)), all.get(half)) {
            (1, _, Some(middle)) => *middle,
            (0, Some(low), Some(high)) => (low + high) / 2.0,
            _ => f64::NAN,
        }
    }
}

/// Both sides' samples for one model.
pub(super) struct Report {
    model: String,
    pub(super) ours: Samples,
    pub(super) genai: Samples,
}

impl Report {
    pub(super) fn new(model: &str) -> Self {
        Self {
            model: model.to_string(),
            ours: Samples::default(),
            genai: Samples::default(),
        }
    }

    pub(super) fn table(&self) -> String {
        let rounds = self.ours.by_key.values().map(Vec::len).max().unwrap_or(0);
        let mut text = format!(
            "{}, medians of {rounds} rounds, both sides in turn\n\n{:40} {:>12} {:>14} {:>7}  {}\n",
            self.model, "", "HEG w8a16", "GenAI int8", "ratio", "goal"
        );
        for line in &LINES {
            let (ours, genai) = (self.ours.median(line.key), self.genai.median(line.key));
            let ratio = ours / genai;
            text.push_str(&format!(
                "{:40} {:>12} {:>14} {ratio:>7.2}  {}\n",
                line.title,
                (line.show)(ours),
                (line.show)(genai),
                line.goal.verdict(ratio)
            ));
        }
        text.push_str(NOTES);
        text
    }

    pub(super) fn json(&self) -> Value {
        let side = |samples: &Samples| {
            let all = LINES.iter().map(|line| {
                let median = json!(samples.median(line.key));
                (line.key.to_string(), median)
            });
            json!({ "median": all.collect::<Map<_, _>>(), "samples": samples.by_key })
        };
        let ratios = LINES.iter().map(|line| {
            let ratio = self.ours.median(line.key) / self.genai.median(line.key);
            let entry = json!({ "ratio": ratio, "goal_met": line.goal.is_met(ratio) });
            (line.key.to_string(), entry)
        });
        json!({
            "model": self.model,
            "heg_w8a16": side(&self.ours),
            "openvino_genai_int8": side(&self.genai),
            "heg_over_genai": ratios.collect::<Map<_, _>>(),
        })
    }
}

/// The figures that `heg bench` and genai.py both print.
pub(super) const BENCH_KEYS: [&str; 6] = [
    "load_ms",
    "prefill_tokens_per_s/512",
    "prefill_tokens_per_s/2048",
    "decode_tokens_per_s",
    "batch_decode_tokens_per_s",
    "peak_rss_bytes",
];

struct Line {
    key: &'static str,
    title: &'static str,
    show: fn(f64) -> String,
    goal: Goal,
}

const LINES: [Line; 8] = [
    Line {
        key: "prefill_tokens_per_s/512",
        title: "prefill of 512 tokens",
        show: speed,
        goal: Goal::AtLeast(1.0),
    },
    Line {
        key: "prefill_tokens_per_s/2048",
        title: "prefill of 2048 tokens",
        show: speed,
        goal: Goal::AtLeast(1.0),
    },
    Line {
        key: "decode_tokens_per_s",
        title: "decode, one request",
        show: speed,
        goal: Goal::AtLeast(1.0),
    },
    Line {
        key: "batch_decode_tokens_per_s",
        title: "decode, 8 requests",
        show: speed,
        goal: Goal::AtLeast(1.0),
    },
    Line {
        key: "start_ms",
        title: "start to first token, 32-token prompt *",
        show: seconds,
        goal: Goal::AtMost(0.6),
    },
    Line {
        key: "process_ms",
        title: "the same, whole processes",
        show: seconds,
        goal: Goal::None,
    },
    Line {
        key: "load_ms",
        title: "load to ready",
        show: seconds,
        goal: Goal::None,
    },
    Line {
        key: "peak_rss_bytes",
        title: "peak resident memory",
        show: megabytes,
        goal: Goal::AtMost(0.8),
    },
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

const NOTES: &str = "
ratio = HEG / GenAI. GenAI: ContinuousBatchingPipeline with a 2 GB cache, 256 tokens a step,
dynamic split-fuse, no prefix cache; its start is LLMPipeline, the faster of both attention backends.
* HEG from before the process exists; GenAI from after Python's start and imports (favours GenAI).
";

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("tiny");
        for (ours, genai) in [(90.0, 100.0), (80.0, 90.0), (100.0, 500.0)] {
            for line in &LINES {
                report.ours.add(line.key, ours);
                report.genai.add(line.key, genai);
            }
        }
        report
    }

    #[test]
    fn medians_of_odd_and_even_counts() {
        let mut samples = Samples::default();
        assert!(samples.median("x").is_nan());
        for (value, expected) in [(3.0, 3.0), (1.0, 2.0), (2.0, 2.0), (9.0, 2.5)] {
            samples.add("x", value);
            assert_eq!(samples.median("x"), expected);
        }
    }

    #[test]
    fn table_and_json_say_ratio_and_goal() {
        let report = report();
        let table = report.table();
        assert!(table.contains("0.90  at least 1.00: MISSED"), "{table}");
        let json = report.json();
        assert_eq!(json["heg_over_genai"]["start_ms"]["goal_met"], false);
        assert_eq!(json["heg_w8a16"]["median"]["load_ms"], 90.0);
    }

    #[test]
    fn a_missing_figure_is_an_error() {
        let mut samples = Samples::default();
        let error = samples.add_all(&json!({ "load_ms": 1 }), &BENCH_KEYS);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("prefill_tokens_per_s")
        );
    }
}
