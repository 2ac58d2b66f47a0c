//! HEG's side: the bundle and the two commands for measurements.

use super::long::LongFigures;
use super::{BATCH, DECODE_TOKENS, PREFILL_TOKENS, START_PROMPT_TOKENS};
use crate::precision::Precision;
use crate::process::{Finished, finished, listed, text, timed_json};
use crate::subject::Subject;
use anyhow::{Context, Result};
use heg_spec::Isa;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use xtask::workspace::{self, Build, note};

/// A built `heg` and a compiled bundle.
pub(crate) struct Ours {
    pub(crate) heg: PathBuf,
    pub(crate) bundle: PathBuf,
    /// Instruction set of CPU programs, instead of the machine's best.
    pub(crate) isa: Option<Isa>,
}

pub(crate) fn prepare(subject: &Subject, precision: Precision) -> Result<Ours> {
    let heg = workspace::build_heg(Build::Release)?;
    note(format!("compiling {} for HEG ({precision})", subject.name));
    let bundle = subject.bundle(precision)?;
    Ok(Ours {
        heg,
        bundle,
        isa: None,
    })
}

impl Ours {
    /// Measures speeds, time to load and peak memory, as printed by `heg bench`.
    pub(super) fn bench(&self) -> Result<Value> {
        let mut command = self.command("bench");
        command
            .arg("--json")
            .args(["--prefill", &listed(&PREFILL_TOKENS)])
            .args(["--decode", &DECODE_TOKENS.to_string()])
            .args(["--batch", &BATCH.to_string()]);
        timed_json(&mut command, "heg bench").map(|(value, _)| value)
    }

    /// Measures a long prompt, and an answer behind it.
    pub(super) fn long(&self, tokens: u32, answer: u32) -> Result<LongFigures> {
        let mut command = self.command("bench");
        command
            .arg("--json")
            .args(["--prefill", &tokens.to_string()])
            .args(["--context", &tokens.to_string()])
            .args(["--decode", &answer.to_string(), "--batch", "1"]);
        let (measured, _) = timed_json(&mut command, "heg bench")?;
        let number = |path: &str| {
            let number = measured.pointer(path).and_then(Value::as_f64);
            number.with_context(|| format!("heg bench printed no `{path}`"))
        };
        Ok(LongFigures {
            prefill_tokens_per_s: number(&format!("/prefill_tokens_per_s/{tokens}"))?,
            decode_tokens_per_s: number("/decode_tokens_per_s")?,
            peak_rss_bytes: number("/peak_rss_bytes")?,
        })
    }

    /// Measures a start up to the first token.
    pub(super) fn start(&self) -> Result<Finished> {
        let ids: Vec<u32> = (0..START_PROMPT_TOKENS).map(|i| 100 + i).collect();
        let ids = serde_json::to_string(&ids).context("cannot write the prompt")?;
        let mut command = self.command("run");
        command
            .args(["--prompt-ids", &ids])
            .args(["--max-tokens", "1", "--temperature", "0"])
            .args(["--ignore-eos", "--json"]);
        finished(&mut command, "heg run")
    }

    fn command(&self, name: &str) -> Command {
        let mut command = workspace::heg(&self.heg);
        command.args([name, &text(&self.bundle)]);
        if let Some(isa) = self.isa {
            command.args(["--isa", isa.name()]);
        }
        command
    }
}
