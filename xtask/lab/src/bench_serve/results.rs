//! The output folder: traces and their outcomes, each run in a file of its own.

use anyhow::{Context, Result};
use heg_workload::{EngineFigures, Outcome, ReplayRequest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::fail::Fail;

/// A folder of results that fit together.
pub(super) struct Results {
    folder: PathBuf,
}

/// A run, as printed by `heg bench-serve --json` and `genai_replay.py`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// Outcomes in the order of the trace.
    pub(super) requests: Vec<Outcome>,
    /// The engine's figures, from our server's metrics.
    pub(super) engine: Option<EngineFigures>,
}

impl Run {
    /// Parses the output of a replay.
    pub(super) fn read(printed: Value) -> Result<Self> {
        serde_json::from_value(printed).context("a replay printed something else")
    }
}

impl Results {
    /// Opens or creates a folder. Refuses one with results of another setup.
    pub(super) fn open(folder: &Path, setup: &Value) -> Result<Self> {
        let results = Self {
            folder: folder.to_path_buf(),
        };
        let wanted = setup.to_string();
        let Ok(known) = fs::read_to_string(results.path("setup.json")) else {
            results.write("setup.json", &wanted)?;
            return Ok(results);
        };
        if known == wanted {
            return Ok(results);
        }
        let message = format!("`{}` holds results of {known}", folder.display());
        let fail = Fail::input(message);
        Err(fail.hint("use another --out, or remove that folder").into())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The path of a folder's trace, which is written if it does not exist. Refuses results of another trace: GenAI may
    /// have sustained another rate when they were made.
    pub(super) fn trace(&self, folder: &str, trace: &[ReplayRequest]) -> Result<PathBuf> {
        let name = format!("{folder}/trace.jsonl");
        let path = self.path(&name);
        let lines = ReplayRequest::to_lines(trace);
        match fs::read_to_string(&path) {
            Ok(known) if known == lines => Ok(path),
            Ok(_) => {
                let message = format!("`{}` is another trace", path.display());
                let fail = Fail::input(message);
                Err(fail.hint("use another --out, or remove that folder").into())
            }
            Err(_) => self.write(&name, &lines).map(|()| path),
        }
    }

    /// Reads a run, if it was measured.
    pub(super) fn read(&self, name: &str) -> Result<Option<Run>> {
        let path = self.path(&format!("{name}.json"));
        let Ok(text) = fs::read_to_string(&path) else {
            return Ok(None);
        };
        let printed = serde_json::from_str(&text);
        let damaged = || format!("`{}` is damaged; remove it", path.display());
        Run::read(printed.with_context(damaged)?)
            .with_context(damaged)
            .map(Some)
    }

    pub(super) fn keep(&self, name: &str, run: &Run) -> Result<()> {
        self.write(&format!("{name}.json"), &serde_json::to_string(run)?)
    }

    /// Writes a file atomically.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path(name);
        let unwritable = || Fail::environment(format!("cannot write `{}`", path.display()));
        let parent = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(parent).with_context(unwritable)?;
        let partial = path.with_extension("partial");
        fs::write(&partial, text).with_context(unwritable)?;
        fs::rename(&partial, &path).with_context(unwritable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use xtask::fail::exit_status;

    #[test]
    fn what_was_measured_is_there_and_other_setups_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = |minutes| Results::open(folder.path(), &json!({ "minutes": minutes }));
        let results = open(5).unwrap();
        assert_eq!(results.read("load-1/heg").unwrap(), None);
        let trace = ReplayRequest::gap(0, 100);
        let outcome = Outcome {
            class: trace[0].class,
            at_ms: 0.0,
            prompt_tokens: 32,
            asked_tokens: 448,
            output_tokens: 448,
            ttft_ms: 1.5,
            latency_ms: 20.25,
            gap_ms_max: 0.5,
            failure: None,
        };
        let run = Run {
            requests: vec![outcome],
            engine: Some(EngineFigures {
                launches: 7,
                ..EngineFigures::default()
            }),
        };
        results.keep("load-1/heg", &run).unwrap();
        let path = results.trace("load-1", &trace).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap().lines().count(), 2);

        let again = open(5).unwrap();
        assert_eq!(again.read("load-1/heg").unwrap(), Some(run));
        // As printed by genai_replay.py.
        let others = Run::read(json!({ "requests": [] })).unwrap();
        assert_eq!(others.engine, None);
        again.trace("load-1", &trace).unwrap();
        let other_trace = again.trace("load-1", &trace[..1]).unwrap_err();
        let other_setup = open(6).err().unwrap();
        assert_eq!(
            [other_trace, other_setup].each_ref().map(exit_status),
            [2, 2]
        );
    }
}
