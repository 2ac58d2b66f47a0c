//! HEG's side: the bundle and the two commands that measure it.

use super::{BATCH, DECODE_TOKENS, PREFILL_TOKENS, START_PROMPT_TOKENS};
use crate::process::{listed, text, timed_json};
use crate::subject::{DEFAULT_FORM, Subject};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;
use xtask::workspace::{self, Build, note};

/// A built `heg` and a compiled bundle.
pub(crate) struct Ours {
    pub(crate) heg: PathBuf,
    pub(crate) bundle: PathBuf,
}

pub(crate) fn prepare(subject: &Subject) -> Result<Ours> {
    let heg = workspace::build_heg(Build::Release)?;
    note(format!(
        "compiling {} for HEG (8-bit weights)",
        subject.name
    ));
    let bundle = subject.bundle(DEFAULT_FORM)?;
    Ok(Ours { heg, bundle })
}

impl Ours {
    /// Speeds, time to load and peak memory, as `heg bench` prints them.
    pub(super) fn bench(&self) -> Result<Value> {
        let mut command = workspace::heg(&self.heg);
        command
            .args(["bench", &text(&self.bundle), "--json"])
            .args(["--prefill", &listed(&PREFILL_TOKENS)])
            .args(["--decode", &DECODE_TOKENS.to_string()])
            .args(["--batch", &BATCH.to_string()]);
        timed_json(&mut command, "heg bench").map(|(value, _)| value)
    }

    /// Milliseconds from before the process exists to its output of the first token.
    pub(super) fn start(&self) -> Result<f64> {
        let ids: Vec<u32> = (0..START_PROMPT_TOKENS).map(|i| 100 + i).collect();
        let ids = serde_json::to_string(&ids).context("cannot write the prompt")?;
        let mut command = workspace::heg(&self.heg);
        command
            .args(["run", &text(&self.bundle), "--prompt-ids", &ids])
            .args(["--max-tokens", "1", "--temperature", "0"])
            .args(["--ignore-eos", "--json"]);
        timed_json(&mut command, "heg run").map(|(_, ms)| ms)
    }
}
