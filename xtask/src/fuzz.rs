//! `cargo xtask fuzz`: builds the libFuzzer targets of `tests/fuzz`, which are one program, and runs each for a bounded
//! time, as many at once as there are cores. Stable Rust and plain cargo suffice: coverage comes from LLVM's own pass,
//! which needs no nightly flag (only the address sanitizer would). Our own crates are compiled for it once more, and
//! nothing else is.

use anyhow::{Context, Result};
use rayon::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fail::Fail;
use xtask::workspace::{self, note, root, target_dir};

/// Arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Targets to run [default: all of tests/fuzz/fuzz_targets]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// Seed of the inputs that are tried [default: another one each time]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    seed: u32,
    /// Inputs to try at most [default: as many as there is time for]
    #[arg(long, value_name = "N")]
    runs: Option<u32>,
}

impl Args {
    /// Arguments for every target, with this number of seconds each at most. The inputs are the same each time, as far as
    /// a target is deterministic and the time suffices: whether a commit passes is not left to chance.
    pub(crate) fn all(seconds: u32) -> Self {
        Self {
            targets: Vec::new(),
            seconds,
            seed: 1,
            runs: Some(SAME_RUNS),
        }
    }
}

/// Inputs of a run that is the same each time. Chosen: most targets try them in half of the seconds that CI gives.
const SAME_RUNS: u32 = 20_000;

pub(crate) fn run(args: &Args) -> Result<()> {
    let known = targets(&folder())?;
    let chosen = match args.targets.as_slice() {
        [] => known,
        named => check_names(named, &known)?,
    };
    note(format!("building {} fuzz targets", chosen.len()));
    build()?;
    // A target keeps one core busy.
    let found: Vec<(&str, String)> = chosen
        .par_iter()
        .filter_map(|target| {
            note(format!("fuzzing {target} for {} s", args.seconds));
            let error = fuzz(target, args).err()?;
            Some((target.as_str(), xtask::fail::render(&error)))
        })
        .collect();
    for (target, error) in &found {
        eprint!("{error}{}", last_lines(&log(target)));
    }
    let failed: Vec<&str> = found.iter().map(|(target, _)| *target).collect();
    if failed.is_empty() {
        println!("{} fuzz targets found nothing", chosen.len());
        return Ok(());
    }
    let hint = format!(
        "the inputs are below `{}`; run `{PROGRAM} --target=NAME` with one to repeat it",
        artifacts("").display()
    );
    let message = format!("fuzzing found something: {}", failed.join(", "));
    Err(Fail::check(message).hint(hint).into())
}

fn build() -> Result<()> {
    let mut command = workspace::cargo(&["build", "--package", PACKAGE, "--quiet", "--locked"]);
    command.env("RUSTC_WORKSPACE_WRAPPER", folder().join("instrumented"));
    workspace::run(&mut command, "building the fuzz targets")
}

fn fuzz(target: &str, args: &Args) -> Result<()> {
    let Args {
        seconds,
        seed,
        runs,
        ..
    } = args;
    let corpus = target_dir().join("fuzz").join("corpus").join(target);
    let artifacts = artifacts(target);
    for dir in [&corpus, &artifacts] {
        fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
    }
    let mut command = Command::new(target_dir().join("debug").join(PROGRAM));
    command
        .arg(format!("--target={target}"))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-seed={seed}"))
        .args(runs.map(|runs| format!("-runs={runs}")))
        .args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=100000"])
        .arg("-print_final_stats=1")
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .current_dir(folder());
    let dictionary = folder().join("dictionaries").join(format!("{target}.dict"));
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    // libFuzzer reads all folders and writes to the first.
    command.arg(&corpus).args(seeds(target));
    // libFuzzer prints much that only matters if it found something.
    let log = log(target);
    let what = || format!("its log is `{}`", log.display());
    let file = fs::File::create(&log).with_context(what)?;
    command.stdout(file.try_clone().with_context(what)?);
    command.stderr(file);
    workspace::run(&mut command, &format!("fuzz target {target}")).with_context(what)
}

/// The end of a log, which says what was found, and with which input.
fn last_lines(log: &Path) -> String {
    const LINES: usize = 25;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter().map(|line| format!("  {line}\n")).collect()
}

/// Inputs to start from: the target's own, and files of the repository in the same format.
fn seeds(target: &str) -> Vec<PathBuf> {
    let own = folder().join("seeds").join(target);
    let more: &[&str] = match target {
        "blob" | "npu_ports" => &["profiler/testdata"],
        "bundle" => &["artifacts/testdata/v1"],
        "spec" => &[
            "graph-specs/architectures",
            "graph-specs/fusions",
            "graph-specs/models",
            "graph-specs/socs",
        ],
        _ => &[],
    };
    [own]
        .into_iter()
        .chain(more.iter().map(|folder| root().join(folder)))
        .filter(|d| d.is_dir())
        .collect()
}

fn targets(folder: &Path) -> Result<Vec<String>> {
    let dir = folder.join("fuzz_targets");
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot list `{}`", dir.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .filter(|name| name != "main")
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(Fail::check(format!("no fuzz targets in `{}`", dir.display())).into());
    }
    Ok(names)
}

fn check_names(named: &[String], known: &[String]) -> Result<Vec<String>> {
    match named.iter().find(|name| !known.contains(name)) {
        None => Ok(named.to_vec()),
        Some(name) => Err(Fail::input(format!("no fuzz target is called `{name}`"))
            .hint(format!("there are: {}", known.join(", ")))
            .into()),
    }
}

fn folder() -> PathBuf {
    root().join("tests").join("fuzz")
}

fn artifacts(target: &str) -> PathBuf {
    target_dir().join("fuzz").join("artifacts").join(target)
}

fn log(target: &str) -> PathBuf {
    target_dir().join("fuzz").join(format!("{target}.log"))
}

const PACKAGE: &str = "heg-fuzz";

/// The program of all targets.
const PROGRAM: &str = "tests_fuzz";

const AFTER_HELP: &str = "\
Examples:
  cargo xtask fuzz                       all targets, a minute each
  cargo xtask fuzz bundle --seconds 600  one, for longer

Needs a C++ compiler for libFuzzer (Debian: `apt-get install g++`). Inputs that add coverage are
kept below <target folder>/fuzz/corpus and used the next time.";
