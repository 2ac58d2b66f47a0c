//! The origin of a figure: the day, the commit and the machine of a run. A figure without them cannot be compared.

use anyhow::Result;
use heg_spec::Isa;
use heg_text::DateTime;
use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use xtask::workspace::{self, root};

/// The day, the commit and the machine of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    /// The day on which the run began, UTC: `2026-11-24`.
    pub(crate) date: String,
    /// The commit that was built, with `+` behind it where files differed from it.
    pub(crate) commit: String,
    /// The processor, the number of its cores, and the best instructions that CPU programs use on it.
    pub(crate) machine: String,
}

impl Provenance {
    /// That of a run that begins now.
    pub(crate) fn now() -> Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let seconds = since.as_secs().try_into()?;
        Ok(Self {
            date: DateTime::from_unix_seconds(seconds).format("%F"),
            commit: commit()?,
            machine: machine(),
        })
    }
}

fn commit() -> Result<String> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(root()).args(arguments);
        workspace::capture(&mut command, "git")
    };
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    let differs = !git(&["status", "--porcelain", "--untracked-files=no"])?
        .trim()
        .is_empty();
    Ok(format!(
        "{}{}",
        commit.trim(),
        if differs { "+" } else { "" }
    ))
}

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isa = Isa::best().name();
    format!("{}, {cores} cores, {isa}", processor(&cpu))
}

/// The processor's name in the text of `/proc/cpuinfo`; a virtual machine may not tell it.
fn processor(cpuinfo: &str) -> &str {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut names = lines.filter(|(key, _)| key.trim() == "model name");
    names.next().map_or("a CPU", |(_, name)| name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_the_first_that_has_a_name() {
        let text = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Example CPU @ 2.00GHz\n\nprocessor\t: 1\n";
        assert_eq!(processor(text), "Example CPU @ 2.00GHz");
        assert_eq!(processor(""), "a CPU");
    }

    #[test]
    fn a_run_has_a_day_and_a_commit() {
        let now = Provenance::now().unwrap();
        assert_eq!(now.date.len(), "2026-11-24".len());
        assert!(now.commit.trim_end_matches('+').len() >= 7);
    }
}
