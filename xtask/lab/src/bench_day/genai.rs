//! A day on OpenVINO GenAI: its models exported with weights of 8 bits, and a script that lives a part of a day, since GenAI
//! is a library and no server.

use super::background::Sums;
use super::day::Day;
use super::models::Models;
use super::person::{THINKING, TOOL, TurnTimes};
use super::report::Lived;
use crate::bench_peers::genai;
use crate::precision::Precision;
use crate::process::timed_json;
use crate::subject::Subject;
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// A Python with GenAI, and its models.
#[derive(Debug)]
pub(super) struct GenAiModels {
    python: PathBuf,
    chat: PathBuf,
    digest: PathBuf,
    embed: PathBuf,
    rerank: PathBuf,
}

/// A part of a day, as the script prints it.
#[derive(Debug, Deserialize)]
struct Part {
    turns: Vec<TurnTimes>,
    secs: f64,
    done: Sums,
    peak_bytes: u64,
}

impl Models {
    pub(super) fn of_genai(&self) -> Result<GenAiModels> {
        let bin = genai::environment()?;
        let export = |subject: &Subject, task: &str| {
            genai::ensure_export(&bin, subject, task, Precision::EIGHT_BITS)
        };
        Ok(GenAiModels {
            chat: export(&self.chat, genai::GENERATION)?,
            digest: export(&self.digest, genai::GENERATION)?,
            embed: export(&self.embed, genai::VECTORS)?,
            rerank: export(&self.rerank, genai::SCORES)?,
            python: bin.join("python"),
        })
    }
}

impl GenAiModels {
    /// Lives a day in two processes, the second behind the restart. It is told what was said before, and reads it again.
    pub(super) fn live(&self, day: &Day) -> Result<Lived> {
        let folder = tempfile::tempdir().context("cannot create a folder for a day")?;
        let mut morning = self.part(&day.before_restart(), folder.path())?;
        if let Some(first) = morning.turns.first_mut() {
            // Other systems are there when a day begins, too.
            first.start_ms = 0.0;
        }
        let said = morning.turns.iter().map(|turn| turn.ids.as_slice());
        let evening = self.part(&day.after_restart(said), folder.path())?;
        Ok(Lived {
            secs: morning.secs + evening.secs,
            done: Sums {
                tokens: morning.done.tokens + evening.done.tokens,
                passages: morning.done.passages + evening.done.passages,
            },
            refusal: None,
            peak_bytes: morning.peak_bytes.max(evening.peak_bytes),
            turns: [morning.turns, evening.turns].concat(),
        })
    }

    fn part(&self, day: &Day, folder: &Path) -> Result<Part> {
        let (script, file) = (folder.join("genai_day.py"), folder.join("day.json"));
        fs::write(&script, SCRIPT).context("cannot write a script")?;
        let mut told = serde_json::to_value(day).context("cannot write a day")?;
        told["thinking_s"] = json!(THINKING.as_secs_f64());
        told["tool_s"] = json!(TOOL.as_secs_f64());
        fs::write(&file, told.to_string()).context("cannot write a day")?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let mut command = Command::new(&self.python);
        command
            .arg(&script)
            .arg("person")
            .arg(&file)
            .args([&self.chat, &self.embed, &self.rerank, &self.digest])
            .arg(started.as_secs_f64().to_string());
        let (printed, _) = timed_json(&mut command, "a day on GenAI")?;
        serde_json::from_value(printed).context("a day on GenAI printed something else")
    }
}

const SCRIPT: &str = include_str!("genai_day.py");
