//! The laboratory of HEG: the papers' evaluation in virtual time, and measurements beside other engines. One file or
//! folder per command; `cargo xtask` builds this program and hands it the arguments.

mod bench_drafts;
mod bench_pair;
mod bench_peers;
mod bench_serve;
mod bench_speculation;
mod evaluate;
mod goal;
mod llama_cpp;
mod model_sheet;
mod precision;
mod process;
mod quality;
mod subject;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use xtask::fail;

/// The command line of `heg-lab`. People type `cargo xtask`, so its usage lines say that.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The laboratory's commands of cargo xtask.",
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replay known answers with several ways to draft: tokens per verification, and what drafting takes
    BenchDrafts(bench_drafts::Args),
    /// Measure two lanes that share every kernel beside one lane and one device with two threads
    BenchPair(bench_pair::Args),
    /// Measure HEG beside OpenVINO GenAI and llama.cpp on the same model, and print one table
    BenchPeers(bench_peers::Args),
    /// Replay mixed traces against HEG, OpenVINO GenAI and llama-server, and print one table
    BenchServe(bench_serve::Args),
    /// Answer questions of data sets without drafts, with them, and by OpenVINO GenAI with prompt look-up
    BenchSpeculation(bench_speculation::Args),
    /// Run the papers' evaluation in virtual time: tables and figures beside theirs
    Evaluate(evaluate::Args),
    /// Measure how far each form on each device is from the f32 model, beside OpenVINO GenAI
    Quality(quality::Args),
    /// Write what the simulator has to know of a bundle's model: a RON file of some tens of kilobytes
    ModelSheet(model_sheet::Args),
}

fn main() -> ExitCode {
    let outcome = match &Cli::parse().command {
        Command::BenchDrafts(args) => bench_drafts::run(args),
        Command::BenchPair(args) => bench_pair::run(args),
        Command::BenchPeers(args) => bench_peers::run(args),
        Command::BenchServe(args) => bench_serve::run(args),
        Command::BenchSpeculation(args) => bench_speculation::run(args),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Quality(args) => quality::run(args),
        Command::ModelSheet(args) => model_sheet::run(args),
    };
    fail::conclude(outcome.map(|()| ExitCode::SUCCESS))
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
