//! Other programs: running, timing and watching them, and writing their arguments.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use xtask::fail::Fail;

/// The results of a program that succeeded.
pub(crate) struct Finished {
    /// Its standard output.
    pub(crate) text: String,
    /// Time from before its start to its first line on standard output, or its end without one.
    pub(crate) first_line_ms: f64,
    /// Its largest memory, if the system reports it.
    pub(crate) peak: Option<PeakMemory>,
}

/// The largest memory of a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PeakMemory {
    /// All resident memory.
    pub(crate) resident_bytes: u64,
    /// The part that belongs to no file, so that it cannot be given back and read again; sampled periodically.
    pub(crate) anonymous_bytes: u64,
}

/// Runs a program until it ends. Returns its standard output as JSON, and the milliseconds from before its start to the
/// first line of the output.
pub(crate) fn timed_json(command: &mut Command, what: &str) -> Result<(Value, f64)> {
    let done = finished(command, what)?;
    Ok((done.json(what)?, done.first_line_ms))
}

impl Finished {
    /// Its standard output as JSON; `what` names the program in messages.
    pub(crate) fn json(&self, what: &str) -> Result<Value> {
        serde_json::from_str(&self.text).with_context(|| format!("{what} printed no JSON"))
    }
}

/// Runs a program until it ends.
pub(crate) fn finished(command: &mut Command, what: &str) -> Result<Finished> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command
        .spawn()
        .map_err(anyhow::Error::new)
        .with_context(|| {
            let program = command.get_program().to_string_lossy().into_owned();
            Fail::environment(format!("cannot start `{program}`"))
        })?;
    let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        bail!("a piped program has no output");
    };
    let pid = child.id();
    let memory = thread::spawn(move || peak_memory(pid));
    // Read at the same time as standard output: a full pipe would stop the program.
    let complaints = thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut stdout = BufReader::new(stdout);
    let mut text = String::new();
    stdout
        .read_line(&mut text)
        .with_context(|| what.to_string())?;
    let first_line_ms = start.elapsed().as_secs_f64() * 1e3;
    stdout
        .read_to_string(&mut text)
        .with_context(|| what.to_string())?;
    // Before its process id can become another program's.
    let peak = memory.join().unwrap_or_default();
    let status = child.wait().with_context(|| what.to_string())?;
    let said = complaints.join().unwrap_or_default();
    if !status.success() {
        let failed = Fail::child(status.code(), format!("{what} failed: {status}"));
        return Err(anyhow::anyhow!(xtask::workspace::last_lines(&said)).context(failed));
    }
    Ok(Finished {
        text,
        first_line_ms,
        peak,
    })
}

/// Watches a program to its end and returns its largest memory; `None` if the system does not report it.
fn peak_memory(pid: u32) -> Option<PeakMemory> {
    let mut peak: Option<PeakMemory> = None;
    // The lines disappear when the program has ended and is not yet waited for.
    while let Some(now) = memory(pid) {
        let before = peak.unwrap_or_default();
        peak = Some(PeakMemory {
            resident_bytes: now.resident_bytes,
            anonymous_bytes: now.anonymous_bytes.max(before.anonymous_bytes),
        });
        thread::sleep(WATCH_INTERVAL);
    }
    peak
}

/// The largest resident memory of a program so far, and its present anonymous memory, from Linux's `/proc`.
pub(crate) fn memory(pid: u32) -> Option<PeakMemory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |key| Some(kilobytes(&status, key)? * 1024);
    Some(PeakMemory {
        resident_bytes: bytes("VmHWM:")?,
        anonymous_bytes: bytes("RssAnon:")?,
    })
}

/// The figure behind a key in a file of Linux's `/proc`, in units of 1 024 bytes.
pub(crate) fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Chosen: a small part of the shortest program, a start, but not so often that it slows it down.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);

/// Numbers as an argument: `512,2048`.
pub(crate) fn listed(numbers: &[u32]) -> String {
    let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
    texts.join(",")
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::fail::{exit_status, render};

    fn shell(script: &str) -> Result<(Value, f64)> {
        timed_json(Command::new("sh").args(["-c", script]), "the script")
    }

    #[test]
    fn the_clock_stops_at_the_first_line() {
        let start = Instant::now();
        let (value, ms) = shell("echo '{\"a\": 1}'; sleep 1").unwrap();
        assert_eq!(value["a"], 1);
        let after_the_line_ms = start.elapsed().as_secs_f64() * 1e3 - ms;
        assert!(after_the_line_ms > 300.0, "{after_the_line_ms}");
    }

    #[test]
    fn an_object_over_several_lines_is_read_whole() {
        let (value, _) = shell("echo '{'; echo '\"a\": 2 }'").unwrap();
        assert_eq!(value["a"], 2);
    }

    #[test]
    fn the_memory_of_a_program_is_watched_to_its_end() {
        let script = "text=$(head -c 30000000 /dev/zero | tr '\\0' a); unset text; sleep 0.1";
        let done = finished(Command::new("sh").args(["-c", script]), "the script").unwrap();
        let peak = done.peak.unwrap();
        assert!(peak.anonymous_bytes > 30_000_000, "{peak:?}");
        assert!(peak.resident_bytes >= peak.anonymous_bytes, "{peak:?}");
    }

    #[test]
    fn a_failing_program_keeps_its_status_and_last_words() {
        let error = shell("echo 'error: no such bundle' >&2; exit 3").unwrap_err();
        assert_eq!(exit_status(&error), 3);
        assert!(render(&error).contains("caused by: error: no such bundle"));
    }
}
