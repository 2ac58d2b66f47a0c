//! llama.cpp's side: its own benchmark programs, and a model in its 8-bit or 4-bit form (Q8_0, Q4_0).

use super::long::LongFigures;
use super::{BATCH, DECODE_TOKENS, PREFILL_TOKENS, START_PROMPT_TOKENS};
use crate::llama_cpp::LlamaCpp;
use crate::precision::Precision;
use crate::process::{Finished, finished, listed, text, timed_json};
use crate::subject::Subject;
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::Command;

/// Built programs and a model for them.
pub(super) struct Llama {
    programs: PathBuf,
    model: PathBuf,
    threads: String,
}

pub(super) fn prepare(subject: &Subject, precision: Precision) -> Result<Llama> {
    let llama = LlamaCpp::open(subject)?;
    Ok(Llama {
        programs: llama.programs(&[BENCH, BATCHED_BENCH, COMPLETION])?,
        model: llama.model(subject, precision)?,
        threads: std::thread::available_parallelism()?.to_string(),
    })
}

impl Llama {
    /// Measures speeds and peak memory, under the keys of `heg bench`.
    pub(super) fn bench(&self) -> Result<Value> {
        let mut command = self.command(BENCH);
        command
            .args(["-p", &listed(&PREFILL_TOKENS)])
            .args(["-n", &DECODE_TOKENS.to_string()])
            .args(["-r", "1", "-fa", "on,off", "-o", "json"]);
        let done = finished(&mut command, BENCH)?;
        let mut figures = figures(&done.json(BENCH)?)?;
        figures["peak_rss_bytes"] = json!(done.peak.map(|peak| peak.resident_bytes));
        figures["batch_decode_tokens_per_s"] = self.batch_decode()?;
        Ok(figures)
    }

    /// Measures a long prompt, and an answer behind it.
    pub(super) fn long(&self, tokens: u32, answer: u32) -> Result<LongFigures> {
        let [tokens, answer, none] = [tokens, answer, 0].map(|count| count.to_string());
        let run = |arguments: &[&str]| -> Result<(f64, f64)> {
            let mut command = self.command(BENCH);
            command
                .args(arguments)
                // Warming up would read the whole prompt once more for each.
                .args(["-r", "1", "-fa", "on,off", "--no-warmup", "-o", "json"]);
            let done = finished(&mut command, BENCH)?;
            let tests = done.json(BENCH)?;
            let rates = tests.as_array().into_iter().flatten();
            let rates = rates.filter_map(|test| test["avg_ts"].as_f64());
            let best = rates.max_by(f64::total_cmp);
            let peak = done
                .peak
                .map_or(f64::NAN, |peak| peak.resident_bytes as f64);
            Ok((best.with_context(|| format!("{BENCH} has no test"))?, peak))
        };
        let (prefill_tokens_per_s, prefill_peak) = run(&["-p", &tokens, "-n", &none])?;
        let (decode_tokens_per_s, decode_peak) = run(&["-p", &none, "-n", &answer, "-d", &tokens])?;
        Ok(LongFigures {
            prefill_tokens_per_s,
            decode_tokens_per_s,
            peak_rss_bytes: prefill_peak.max(decode_peak),
        })
    }

    /// Tokens per second of all answers of a batch, after short prompts like those of the other sides.
    fn batch_decode(&self) -> Result<Value> {
        let mut command = self.command(BATCHED_BENCH);
        command
            .args(["-npp", "8", "-ntg", &DECODE_TOKENS.to_string()])
            .args(["-npl", &BATCH.to_string()])
            .args(["-c", &(BATCH * CONTEXT_TOKENS).to_string()])
            .args(["--output-format", "jsonl"]);
        let (value, _) = timed_json(&mut command, BATCHED_BENCH)?;
        Ok(value["speed_tg"].clone())
    }

    /// Measures a start up to the first token.
    pub(super) fn start(&self) -> Result<Finished> {
        let mut command = self.command(COMPLETION);
        command
            .args(["-no-cnv", "-n", "1", "--temp", "0", "--ignore-eos"])
            .args(["--no-warmup", "--no-display-prompt"])
            .args(["-c", &CONTEXT_TOKENS.to_string(), "-p", &prompt()]);
        finished(&mut command, COMPLETION)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.args(["-m", &text(&self.model), "-t", &self.threads]);
        command
    }
}

/// Converts llama-bench's list of tests to our keys. It runs each test with both of its attentions, and the faster one
/// depends on model and machine: the better one counts.
fn figures(tests: &Value) -> Result<Value> {
    let best = |prompt: u32, answer: u32| -> Result<f64> {
        let tests = tests.as_array().into_iter().flatten();
        let of_these = tests.filter(|test| test["n_prompt"] == prompt && test["n_gen"] == answer);
        let rates = of_these.filter_map(|test| test["avg_ts"].as_f64());
        let best = rates.max_by(f64::total_cmp);
        best.with_context(|| format!("{BENCH} has no test of {prompt} and {answer} tokens"))
    };
    let mut prefill = Map::new();
    for tokens in PREFILL_TOKENS {
        prefill.insert(tokens.to_string(), json!(best(tokens, 0)?));
    }
    Ok(json!({
        "prefill_tokens_per_s": prefill,
        "decode_tokens_per_s": best(0, DECODE_TOKENS)?,
    }))
}

/// A text of `START_PROMPT_TOKENS` tokens: in all vocabularies, neighbouring digits and commas are separate tokens.
fn prompt() -> String {
    let pairs = START_PROMPT_TOKENS / 2;
    (0..pairs).map(|n| format!("{},", n % 10)).collect()
}

const BENCH: &str = "llama-bench";
const BATCHED_BENCH: &str = "llama-batched-bench";
const COMPLETION: &str = "llama-completion";

/// Room for each sequence: more than it needs, but not so much that a start clears memory for nothing.
const CONTEXT_TOKENS: u32 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn test(prompt: u32, answer: u32, rate: f64) -> Value {
        json!({ "n_prompt": prompt, "n_gen": answer, "avg_ts": rate })
    }

    #[test]
    fn the_better_attention_counts() {
        let tests = json!([
            test(512, 0, 100.0),
            test(2048, 0, 90.0),
            test(0, DECODE_TOKENS, 20.0),
            test(512, 0, 110.0),
            test(2048, 0, 80.0),
            test(0, DECODE_TOKENS, 21.0),
        ]);
        let expected = json!({
            "prefill_tokens_per_s": { "512": 110.0, "2048": 90.0 },
            "decode_tokens_per_s": 21.0,
        });
        assert_eq!(figures(&tests).unwrap(), expected);
    }

    #[test]
    fn a_missing_test_is_an_error() {
        let error = figures(&json!([test(512, 0, 100.0)])).unwrap_err();
        assert!(error.to_string().contains("2048"), "{error}");
    }

    #[test]
    fn the_prompt_has_its_tokens_one_byte_each() {
        assert_eq!(prompt().len(), START_PROMPT_TOKENS as usize);
    }
}
