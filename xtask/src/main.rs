//! `cargo xtask …`: the build-time front door of HEG. One file per command; this one only parses
//! the command line, calls the command and turns an error into lines and an exit status.
//! Nothing here knows how a command works.

mod ci;
mod demo;
mod deny;
mod fuzz;
mod lab;
mod profile;
mod test;
mod tidy;
mod windows;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use xtask::{compile, fail, fetch, setup, synth};

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
    /// Turn a model (RON file, GGUF file or Hugging Face folder) into one bundle
    CompileModel(compile::Args),
    /// Download a real model by name, check it, and print the path of its file
    FetchModel(fetch::Args),
    /// Write a Hugging Face folder with a known model's shapes and random weights
    SynthModel(synth::Args),
    /// Set up, then run every test of the workspace
    Test(test::Args),
    /// Everything that a change must pass: fmt, tidy, deny, clippy, doc, windows, test, fuzz
    Ci(ci::Args),
    /// Check licences, sources and dependencies by deny.toml
    Deny(deny::Args),
    /// Run the fuzz targets of tests/fuzz for a bounded time
    Fuzz(fuzz::Args),
    /// Report what breaks the house rules, all findings at once
    Tidy(tidy::Args),
    /// Set up, get a small real model, talk to it, and let a tiny one answer three agent prompts
    Demo(demo::Args),
    /// Replay known answers with several ways to draft: tokens per verification, and what drafting takes
    BenchDrafts(lab::Args),
    /// Measure two lanes that share every kernel beside one lane and one device with two threads
    BenchPair(lab::Args),
    /// Measure HEG beside OpenVINO GenAI and llama.cpp on the same model, and print one table
    BenchPeers(lab::Args),
    /// Replay mixed traces against HEG, OpenVINO GenAI and llama-server, and print one table
    BenchServe(lab::Args),
    /// Answer questions of data sets without drafts, with them, and by OpenVINO GenAI with prompt look-up
    BenchSpeculation(lab::Args),
    /// Run the papers' evaluation in virtual time: tables and figures beside theirs
    Evaluate(lab::Args),
    /// Measure how far each form on each device is from the f32 model, beside OpenVINO GenAI
    Quality(lab::Args),
    /// Write what the simulator has to know of a bundle's model: a RON file of some tens of kilobytes
    ModelSheet(lab::Args),
    /// Measure kernels on this machine, and check what is predicted from that
    Profile(profile::Args),
}

fn main() -> ExitCode {
    let arguments = lab::spell_out_help(std::env::args_os().collect());
    fail::conclude(dispatch(&Cli::parse_from(arguments).command))
}

fn dispatch(command: &Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Setup(args) => setup::run(args),
        Command::CompileModel(args) => compile::run(args),
        Command::FetchModel(args) => fetch::run(args),
        Command::SynthModel(args) => synth::run(args),
        Command::Test(args) => test::run(args),
        Command::Ci(args) => ci::run(args),
        Command::Deny(args) => deny::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Tidy(args) => tidy::run(args),
        Command::Demo(args) => demo::run(args),
        Command::BenchDrafts(args) => return lab::run("bench-drafts", args),
        Command::BenchPair(args) => return lab::run("bench-pair", args),
        Command::BenchPeers(args) => return lab::run("bench-peers", args),
        Command::BenchServe(args) => return lab::run("bench-serve", args),
        Command::BenchSpeculation(args) => return lab::run("bench-speculation", args),
        Command::Evaluate(args) => return lab::run("evaluate", args),
        Command::Quality(args) => return lab::run("quality", args),
        Command::ModelSheet(args) => return lab::run("model-sheet", args),
        Command::Profile(args) => profile::run(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

const AFTER_HELP: &str = "\
Start here:
  cargo xtask demo                                  see it work, end to end
  cargo xtask test                                  set up and run all tests
  cargo xtask fetch-model smollm2-135m-instruct     a real model; prints where it is
  cargo xtask compile-model path/to/hf-folder       writes artifacts/bundles/NAME.heg
  cargo xtask synth-model --like llama-3.2-1b       a model to measure with, no licence needed
  cargo xtask evaluate                              the papers' schedulers, side by side

Exit status: 0 fine · 1 a check found something (test, ci, quality, …) · 2 your input ·
3 the bundle · 4 this machine (files, network, missing programs) · 70 a bug of ours.";

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
