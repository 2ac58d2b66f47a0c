//! `cargo xtask ci`: everything that a change must pass, in one command and in the order in
//! which it is cheapest to fail. All steps run, whatever the earlier ones said, and a table at
//! the end says which failed and how long each took.

use crate::{deny, fuzz, test, tidy, windows};
use anyhow::Result;
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
    /// cargo clippy, warnings are errors
    Clippy,
    /// cargo doc, warnings are errors
    Doc,
    /// cargo check for Windows of what has to run there, and the CPU's kernel tests under wine
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
    for step in steps {
        note(format!("ci: {}", step.name()));
        let start = Instant::now();
        let outcome = perform(step, args);
        let verdict = match &outcome {
            Ok(Outcome::Passed) => "passed",
            Ok(Outcome::Skipped) => "SKIPPED (not installed)",
            Err(_) => "FAILED",
        };
        let seconds = start.elapsed().as_secs_f64();
        lines.push(format!("  {:8} {seconds:7.1} s  {verdict}", step.name()));
        if let Err(error) = outcome {
            eprint!("{}", fail::render(&error));
            failed.push(step.name());
        }
    }
    println!("{}", lines.join("\n"));
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
        Step::Tidy | Step::Deny | Step::Doc | Step::Windows | Step::Test | Step::Fuzz => None,
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

fn doc() -> Result<()> {
    let mut command = workspace::cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    workspace::run(command.env("RUSTDOCFLAGS", "-Dwarnings"), "cargo doc")
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Deny => "deny",
            Self::Clippy => "clippy",
            Self::Doc => "doc",
            Self::Windows => "windows",
            Self::Test => "test",
            Self::Fuzz => "fuzz",
        }
    }
}

const ALL: [Step; 8] = [
    Step::Fmt,
    Step::Tidy,
    Step::Deny,
    Step::Clippy,
    Step::Doc,
    Step::Windows,
    Step::Test,
    Step::Fuzz,
];

const CLIPPY: [&str; 7] = [
    "clippy",
    "--workspace",
    "--all-targets",
    "--quiet",
    "--",
    "-D",
    "warnings",
];

/// For each target: enough to catch a reader that falls over at once. Chosen.
const FUZZ_SECONDS: u32 = 6;

const AFTER_HELP: &str = "\
Examples:
  cargo xtask ci                             before you push
  cargo xtask ci --only fmt --only tidy      the quick ones
  cargo xtask ci --only windows              the CPU's kernels as a Windows program
  cargo xtask ci --skip test                 when the tests ran already";
