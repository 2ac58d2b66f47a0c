//! `cargo xtask test`: the README's test command. Sets OpenVINO up, then runs all tests of the
//! workspace with plain cargo, documentation examples included. Tests of the NPU compiler are
//! required where it was set up, and skipped elsewhere; so is the test of Python clients.

use anyhow::Result;
use std::ffi::OsString;
use xtask::setup;
use xtask::workspace::{self, note};

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
    let mut command = workspace::cargo(&["test", "--workspace"]);
    // What cannot run here is a failure, and snapshots are compared, never written.
    command
        .env("HEG_REQUIRE_OPENVINO", "1")
        .env("INSTA_UPDATE", "no");
    match npu {
        Some(_) => drop(command.env("HEG_REQUIRE_NPU", "1")),
        None => note("no NPU compiler: its tests are skipped (run: cargo xtask setup --npu)"),
    }
    if setup::has_clients() {
        command.env("HEG_REQUIRE_CLIENTS", "1");
    } else {
        note("no Python clients: their test is skipped (run: cargo xtask setup --clients)");
    }
    workspace::run(command.args(&args.extra), "cargo test")
}

const AFTER_HELP: &str = "\
Examples:
  cargo xtask test                             everything
  cargo xtask test -p heg-artifacts            cargo's own options work
  cargo xtask test golden -- --nocapture       and so do the test program's, after `--`";
