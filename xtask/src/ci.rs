//! `cargo xtask ci`: everything that a change must pass, in one command and in the order in which it is cheapest to
//! fail. All steps run, whatever the results of earlier ones, and a table at the end shows which failed and how long
//! each took.

use crate::{deny, fuzz, shaders, test, tidy, windows};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use xtask::fail::{self, Fail};
use xtask::setup;
use xtask::workspace::{self, note};

/// Arguments of `cargo xtask ci`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Leave a step out (may be given several times)
    #[arg(long, value_enum, value_name = "STEP")]
    skip: Vec<Step>,
    /// Run this step only (may be given several times)
    #[arg(long, value_enum, value_name = "STEP", conflicts_with = "skip")]
    only: Vec<Step>,
    /// Fail where a step is skipped because something is not installed
    #[arg(long)]
    require_all: bool,
    /// Seconds for each fuzz target
    #[arg(long, value_name = "N", default_value_t = FUZZ_SECONDS)]
    fuzz_seconds: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Step {
    /// cargo fmt --check
    Fmt,
    /// the house rules
    Tidy,
    /// licences, sources and dependencies
    Deny,
    /// the GPU's modules against their shaders
    Shaders,
    /// cargo clippy, warnings are errors
    Clippy,
    /// cargo doc, warnings are errors
    Doc,
    /// heg.exe and the CPU's kernel tests under wine
    Windows,
    /// all tests
    Test,
    /// the fuzz targets, bounded
    Fuzz,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let steps: Vec<Step> = ALL
        .into_iter()
        .filter(|step| !args.skip.contains(step))
        .filter(|step| args.only.is_empty() || args.only.contains(step))
        .collect();
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    let mut errors = String::new();
    for step in steps {
        note(format!("ci: {}", step.name()));
        let start = Instant::now();
        let outcome = perform(step, args);
        let verdict = match &outcome {
            Ok(Outcome::Passed) => "passed",
            Ok(Outcome::Skipped) => "SKIPPED (not installed)",
            Err(_) => "FAILED",
        };
        if args.require_all && matches!(outcome, Ok(Outcome::Skipped)) {
            failed.push(step.name());
        }
        let seconds = start.elapsed().as_secs_f64();
        lines.push(format!("  {:8} {seconds:7.1} s  {verdict}", step.name()));
        if let Err(error) = outcome {
            let error = fail::render(&error);
            eprint!("{error}");
            errors.push_str(&error);
            failed.push(step.name());
        }
    }
    println!("{}", lines.join("\n"));
    if !errors.is_empty() {
        println!("the errors, again:");
        print!("{errors}");
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Fail::check(format!("failed: {}", failed.join(", "))).into()),
    }
}

enum Outcome {
    Passed,
    Skipped,
}

fn perform(step: Step, args: &Args) -> Result<Outcome> {
    let needs = match step {
        Step::Fmt => Some("fmt"),
        Step::Clippy => Some("clippy"),
        Step::Tidy | Step::Deny | Step::Shaders | Step::Doc => None,
        Step::Windows | Step::Test | Step::Fuzz => None,
    };
    if let Some(tool) = needs
        && workspace::capture(&mut workspace::cargo(&[tool, "--version"]), tool).is_err()
    {
        note(format!("`cargo {tool}` is not installed: step skipped"));
        return Ok(Outcome::Skipped);
    }
    match step {
        Step::Fmt => cargo(&["fmt", "--all", "--check"]),
        Step::Tidy => tidy::run(&tidy::Args {}),
        Step::Deny => deny::run(&deny::Args {}),
        Step::Clippy => cargo(&CLIPPY),
        Step::Shaders => {
            return Ok(match shaders::run(&shaders::Args { check: true })? {
                true => Outcome::Passed,
                false => Outcome::Skipped,
            });
        }
        Step::Doc => doc(),
        Step::Windows => {
            return Ok(match windows::run()? {
                true => Outcome::Passed,
                false => Outcome::Skipped,
            });
        }
        Step::Test => test::run(&test::Args { extra: Vec::new() }),
        Step::Fuzz => {
            setup::ensure_openvino()?;
            fuzz::run(&fuzz::Args::all(args.fuzz_seconds))
        }
    }?;
    Ok(Outcome::Passed)
}

fn cargo(args: &[&str]) -> Result<()> {
    workspace::run(&mut workspace::cargo(args), &format!("cargo {}", args[0]))
}

/// Documents on what clippy left: with its driver before rustc, cargo finds our crates checked.
fn doc() -> Result<()> {
    let mut command = workspace::cargo(&["doc", "--workspace", "--no-deps", "--quiet", "--locked"]);
    if let Some(driver) = clippy_driver() {
        command
            .env("RUSTC_WORKSPACE_WRAPPER", driver)
            .env("CLIPPY_ARGS", CLIPPY_ARGS);
    }
    workspace::run(command.env("RUSTDOCFLAGS", "-Dwarnings"), "cargo doc")
}

/// The program that `cargo clippy` has cargo start; `None` where it is not beside the compiler.
fn clippy_driver() -> Option<PathBuf> {
    let mut command = Command::new("rustc");
    let command = command.args(["--print", "sysroot"]);
    let sysroot = workspace::capture(command, "rustc").ok()?;
    let driver = Path::new(sysroot.trim_end()).join("bin/clippy-driver");
    driver.is_file().then_some(driver)
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Deny => "deny",
            Self::Shaders => "shaders",
            Self::Clippy => "clippy",
            Self::Doc => "doc",
            Self::Windows => "windows",
            Self::Test => "test",
            Self::Fuzz => "fuzz",
        }
    }
}

const ALL: [Step; 9] = [
    Step::Fmt,
    Step::Tidy,
    Step::Deny,
    Step::Shaders,
    Step::Clippy,
    Step::Doc,
    Step::Windows,
    Step::Test,
    Step::Fuzz,
];

const CLIPPY: [&str; 8] = [
    "clippy",
    "--workspace",
    "--all-targets",
    "--quiet",
    "--locked",
    "--",
    "-D",
    "warnings",
];

/// How `cargo clippy` hands `-D warnings` to its driver.
const CLIPPY_ARGS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Seconds per target: enough to catch a reader that fails at once. Chosen.
const FUZZ_SECONDS: u32 = 2;

const AFTER_HELP: &str = "\
Examples:
  cargo xtask ci                             before you push
  cargo xtask ci --only fmt --only tidy      the quick ones
  cargo xtask ci --only windows              the CPU's kernels as a Windows program
  cargo xtask ci --skip test                 when the tests ran already";
