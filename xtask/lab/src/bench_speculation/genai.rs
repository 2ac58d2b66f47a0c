//! OpenVINO GenAI's side: one process that answers prompt after prompt, with and without prompt look-up.

use super::Spent;
use crate::bench_peers::genai::environment;
use crate::process::text;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use xtask::fail::Fail;

/// The process.
pub(super) struct GenAi {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

#[derive(Serialize)]
struct Asked<'a> {
    lookup: bool,
    ids: &'a [u32],
    tokens: u32,
}

#[derive(Deserialize)]
struct Answered {
    seconds: f64,
    tokens: u32,
}

impl GenAi {
    /// Starts the process with a model exported for GenAI; `peers` is a folder for its script.
    pub(super) fn start(model: &Path, peers: &Path) -> Result<Self> {
        let python = environment()?.join("python");
        let script = peers.join("genai_lookup.py");
        fs::write(&script, SCRIPT)
            .with_context(|| format!("cannot write `{}`", script.display()))?;
        let mut command = Command::new(&python);
        command.args([text(&script), text(model)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| Fail::environment(format!("cannot start `{}`", python.display())))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = to.zip(from).context("a piped program has no pipes")?;
        let mut genai = Self {
            child,
            to,
            from: BufReader::new(from),
        };
        genai.line().context("GenAI did not start")?;
        Ok(genai)
    }

    /// The time for an answer of `tokens` tokens.
    pub(super) fn answer(&mut self, ids: &[u32], tokens: u32, lookup: bool) -> Result<Spent> {
        let asked = Asked {
            lookup,
            ids,
            tokens,
        };
        let line = serde_json::to_string(&asked).context("cannot write a prompt")?;
        writeln!(self.to, "{line}").context("GenAI takes no more prompts")?;
        let line = self.line()?;
        let answered: Answered =
            serde_json::from_str(&line).with_context(|| format!("GenAI printed `{line}`"))?;
        Ok(Spent {
            seconds: answered.seconds,
            decode_seconds: 0.0,
            tokens: answered.tokens,
            ..Spent::default()
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line).context("GenAI is gone")?;
        if line.is_empty() {
            return Err(Fail::environment("GenAI ended before its answer".to_owned()).into());
        }
        Ok(line)
    }
}

impl Drop for GenAi {
    fn drop(&mut self) {
        // It would wait for prompts for ever.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SCRIPT: &str = include_str!("genai_lookup.py");
