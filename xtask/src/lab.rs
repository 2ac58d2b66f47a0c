//! The laboratory's commands. They are a program of their own, `heg-lab`, because they need what nothing else here
//! needs: the simulator, workloads and charts. This file builds that program and hands it the arguments.

use anyhow::Result;
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use xtask::workspace::{self, Build};

/// Arguments that `heg-lab` reads, `--help` among them.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(
        value_name = "ARGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    forwarded: Vec<OsString>,
}

/// Runs `heg-lab COMMAND`, which prints its own errors. Returns its exit status.
pub(crate) fn run(command: &str, args: &Args) -> Result<ExitCode> {
    let program = workspace::build_lab(match command {
        // The engine that it measures is part of it.
        BENCH_PAIR | BENCH_SPECULATION => Build::Release,
        _ => Build::Dev,
    })?;
    let mut lab = Command::new(program);
    lab.arg(command).args(&args.forwarded);
    let status = workspace::status(&mut lab)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Turns `help COMMAND` into `COMMAND --help`, so that the laboratory answers for its commands.
pub(crate) fn spell_out_help(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.len() == 3 && arguments[1] == "help" && COMMANDS.iter().any(|c| arguments[2] == *c)
    {
        arguments[1] = arguments[2].clone();
        arguments[2] = "--help".into();
    }
    arguments
}

const BENCH_PAIR: &str = "bench-pair";

const BENCH_SPECULATION: &str = "bench-speculation";

const COMMANDS: [&str; 8] = [
    "bench-drafts",
    BENCH_PAIR,
    "bench-peers",
    "bench-serve",
    BENCH_SPECULATION,
    "evaluate",
    "model-sheet",
    "quality",
];
