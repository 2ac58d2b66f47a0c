//! `cargo xtask …`: the build-time front door of HEG. One file per command; this one only parses
//! the command line, calls the command and turns an error into lines and an exit status.
//! Nothing here knows how a command works.

mod ci;
mod demo;
mod deny;
mod fuzz;
mod lab;
mod lent;
mod profile;
mod shaders;
mod test;
mod tidy;
mod windows;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;
use xtask::{compile, dist, fail, farm, fetch, setup, synth, workspace};

/// The command line of `cargo xtask`.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Everything HEG does at build time: set up, compile models, test, measure.",
    after_help = AFTER_HELP,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find OpenVINO 2026.4.1, or get it once from the Python package index
    Setup(setup::Args),
    /// Make prompts for the process that starts this one
    #[command(name = hegc::TEXT_WORKER, hide = true)]
    TextWorker,
    /// Turn a model (RON file, GGUF file or Hugging Face folder) into one bundle: `hegc compile`
    CompileModel(compile::Args),
    /// Download a real model by name, check it, and print the path of its file: `hegc fetch`
    FetchModel(fetch::Args),
    /// Write a Hugging Face folder with a known model's shapes and random weights: `hegc synth`
    SynthModel(synth::Args),
    /// Set up, then run every test of the workspace
    Test(test::Args),
    /// Everything that a change must pass: fmt, tidy, deny, shaders, clippy, doc, windows, test, fuzz
    Ci(ci::Args),
    /// Check licences, sources and dependencies by deny.toml
    Deny(deny::Args),
    /// Build what people install who do not build: archives, a Debian package, a Python wheel
    Dist(dist::Args),
    /// Plan how machines that share a store compile a matrix of models
    Farm(farm::Args),
    /// Run the fuzz targets of tests/fuzz for a bounded time
    Fuzz(fuzz::Args),
    /// Measure HEG on a machine that cannot build it: pack a folder for it, read what came back
    Lent(lent::Args),
    /// Compile the GPU's shaders, or check that the committed modules are what they compile to
    Shaders(shaders::Args),
    /// Report what breaks the house rules, all findings at once
    Tidy(tidy::Args),
    /// Set up, get a small real model, talk to it, and let a tiny one answer three agent prompts
    Demo(demo::Args),
    /// Measure kernels on this machine, and check what is predicted from that
    Profile(profile::Args),
}

fn main() -> ExitCode {
    let arguments = lab::spell_out_help(std::env::args_os().collect());
    let matches = command_line().get_matches_from(arguments);
    if let Some((command, arguments)) = lab::called(&matches) {
        return fail::conclude(lab::run(command, &arguments));
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    fail::conclude(dispatch(&cli.command))
}

/// Our commands, and the laboratory's.
fn command_line() -> clap::Command {
    lab::add_commands(Cli::command())
}

fn dispatch(command: &Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Setup(args) => setup::run(args),
        Command::TextWorker => return Ok(heg_confine::work()),
        Command::CompileModel(args) => compile::run(args, &workspace::output()),
        Command::FetchModel(args) => fetch::run(args, &workspace::output()),
        Command::SynthModel(args) => synth::run(args, &workspace::output()),
        Command::Test(args) => test::run(args),
        Command::Ci(args) => ci::run(args),
        Command::Deny(args) => deny::run(args),
        Command::Dist(args) => dist::run(args),
        Command::Farm(args) => farm::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Lent(args) => lent::run(args),
        Command::Shaders(args) => shaders::run(args).map(|_| ()),
        Command::Tidy(args) => tidy::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Profile(args) => profile::run(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

const AFTER_HELP: &str = "\
Start here:
  cargo xtask demo                                  see it work, end to end
  cargo xtask test                                  set up and run all tests
  cargo xtask fetch-model smollm2-135m-instruct     a real model; prints where it is
  cargo xtask compile-model path/to/hf-folder       writes bundles/NAME.heg
  cargo xtask synth-model --like llama-3.2-1b       a model to measure with, no licence needed
  cargo xtask evaluate                              the papers' schedulers, side by side

Exit status: 0 fine · 1 a check found something (test, ci, quality, …) · 2 your input ·
3 the bundle · 4 this machine (files, network, missing programs) · 70 a bug of ours.";

#[cfg(test)]
mod tests {
    #[test]
    fn command_line_is_consistent() {
        super::command_line().debug_assert();
    }
}
