//! `cargo xtask test`: the README's test command. Sets OpenVINO up, then runs all tests of the workspace with plain
//! cargo, documentation examples included. Tests of the NPU compiler are required if it was set up, and skipped
//! otherwise; so are the tests of others' clients. Every test runs, whatever failed before. Finally it lists the skipped,
//! the slowest and the failed tests.

mod failures;
mod scratch;
mod timing;

use anyhow::{Context, Result};
use failures::Failures;
use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};
use timing::Timing;
use xtask::fail::Fail;
use xtask::setup;
use xtask::workspace::{self, note, target_dir};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Handed to `cargo test` as they are
    #[arg(
        value_name = "ARGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) extra: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure_openvino()?;
    let npu = setup::ensure_npu_if_wanted()?;
    let begin = Instant::now();
    let mut command = workspace::cargo(&TEST);
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let packages = build(command.args(&args.extra))?;
    note(format!(
        "{} test programs built in {:.1} s",
        packages.len(),
        begin.elapsed().as_secs_f64()
    ));
    // A test that cannot run here fails, and snapshots are compared, never written.
    let mut variables = vec![("HEG_REQUIRE_OPENVINO", "1"), ("INSTA_UPDATE", "no")];
    match npu {
        Some(_) => variables.push(("HEG_REQUIRE_NPU", "1")),
        None => note("no NPU compiler: its tests are skipped (run: cargo xtask setup --npu)"),
    }
    if setup::has_clients() {
        variables.push(("HEG_REQUIRE_CLIENTS", "1"));
    } else {
        note("no clients: their tests are skipped (run: cargo xtask setup --clients)");
    }
    let skipped = target_dir().join("skipped-tests");
    let _ = fs::remove_file(&skipped);
    let scratch = scratch::in_memory();
    let mut timing = Timing::new(packages, threads());
    let mut failures = Failures::default();
    let mut command = workspace::cargo(&TEST);
    command
        .envs(variables.iter().copied())
        .env("HEG_SKIPPED", &skipped)
        .env("RUST_TEST_THREADS", threads().to_string())
        .envs(scratch.iter().map(|folder| ("TMPDIR", folder.path())))
        .args(&args.extra);
    if args.extra.is_empty() {
        command.arg("--no-fail-fast");
    }
    let outcome = watch(command, |line| {
        timing.line(line, begin.elapsed());
        failures.line(line);
    });
    // The output of a passing test is not shown.
    let mut lines: Vec<String> = fs::read_to_string(&skipped)
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort_unstable();
    lines.dedup();
    for line in lines {
        note(format!("skipped: {line}"));
    }
    eprint!("{}{}", timing.slowest(), failures.report());
    outcome
}

/// Builds the test programs. Returns the package of each, by the program's file name.
fn build(command: &mut Command) -> Result<BTreeMap<String, String>> {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()
        .context(Fail::environment("cannot start `cargo test`"))?;
    if !output.status.success() {
        let message = format!("building the tests failed: {}", output.status);
        return Err(Fail::child(output.status.code(), message).into());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let built = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let program = message["executable"].as_str()?;
        message["profile"]["test"].as_bool().filter(|test| *test)?;
        let file = program.rsplit(['/', '\\']).next()?;
        Some((
            file.to_owned(),
            package_name(message["package_id"].as_str()?),
        ))
    });
    Ok(built.collect())
}

/// The name in cargo's package id: `FOLDER#NAME@VERSION`, or `FOLDER#VERSION` if the folder has that name.
fn package_name(id: &str) -> String {
    let (folder, rest) = id.rsplit_once('#').unwrap_or(("", id));
    let name = match rest.split_once('@') {
        Some((name, _)) => name,
        None => folder.rsplit('/').next().unwrap_or(folder),
    };
    name.to_owned()
}

/// Runs the tests, and prints their output while `read` reads it.
fn watch(mut command: Command, mut read: impl FnMut(&str)) -> Result<()> {
    let cannot = || Fail::environment("cannot start `cargo test`");
    let (reader, writer) = std::io::pipe().with_context(cannot)?;
    command
        .stdout(writer.try_clone().with_context(cannot)?)
        .stderr(writer);
    let mut child = command.spawn().with_context(cannot)?;
    // It holds ends of the pipe as well.
    drop(command);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).into_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                read(&line);
                println!("{line}");
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A process left behind by a test may hold the writer open for ever.
            Err(RecvTimeoutError::Timeout) => {
                if child.try_wait().with_context(cannot)?.is_some() {
                    break;
                }
            }
        }
    }
    let status = child.wait().with_context(cannot)?;
    match status.success() {
        true => Ok(()),
        false => Err(Fail::child(status.code(), format!("cargo test failed: {status}")).into()),
    }
}

/// Number of tests that run at once: as the environment says, else two for each core, since the tests of hung lanes and
/// of slow clients wait most of their time (85% of it in `faults`).
fn threads() -> usize {
    let chosen = env::var("RUST_TEST_THREADS").ok();
    let chosen = chosen.and_then(|threads| threads.parse().ok());
    chosen.unwrap_or_else(|| 2 * available_parallelism().map_or(1, usize::from))
}

/// Time to wait for more output after the last line of a program that has ended. Chosen.
const PATIENCE: Duration = Duration::from_secs(1);

const TEST: [&str; 3] = ["test", "--workspace", "--locked"];

const AFTER_HELP: &str = "\
Examples:
  cargo xtask test                             everything
  cargo xtask test -p heg-artifacts            cargo's own options work
  cargo xtask test golden -- --nocapture       and so do the test program's, after `--`";

#[cfg(test)]
mod tests {
    use super::package_name;

    #[test]
    fn packages_have_names() {
        assert_eq!(
            package_name("path+file:///a/tests#heg-tests@0.1.0"),
            "heg-tests"
        );
        assert_eq!(package_name("path+file:///a/xtask#0.1.0"), "xtask");
    }
}
