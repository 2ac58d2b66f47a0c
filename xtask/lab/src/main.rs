//! The laboratory of HEG: the papers' evaluation in virtual time, and measurements beside other engines. One file or
//! folder per command; `cargo xtask` builds this program and hands it the arguments.

mod bench_attacks;
mod bench_changes;
mod bench_day;
mod bench_drafts;
mod bench_pair;
mod bench_peers;
mod bench_serve;
mod bench_ship;
mod bench_speculation;
mod bench_state;
mod bench_texts;
mod check_twin;
mod disk;
mod evaluate;
mod goal;
mod lines;
mod llama_cpp;
mod model_sheet;
mod output;
mod precision;
mod process;
mod provenance;
mod quality;
mod server;
mod shared;
mod statistics;
mod subject;
mod table;
mod words;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;
use xtask::fail;
use xtask::laboratory::{LAB_COMMANDS, LabCommand};

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

/// The words about each command are in [`LAB_COMMANDS`].
#[derive(Subcommand)]
enum Command {
    BenchAttacks(bench_attacks::Args),
    BenchChanges(bench_changes::Args),
    BenchDay(bench_day::Args),
    BenchDrafts(bench_drafts::Args),
    BenchPair(bench_pair::Args),
    BenchPeers(bench_peers::Args),
    BenchServe(bench_serve::Args),
    BenchShip(bench_ship::Args),
    BenchSpeculation(bench_speculation::Args),
    BenchState(bench_state::Args),
    BenchTexts(bench_texts::Args),
    CheckTwin(check_twin::Args),
    Evaluate(evaluate::Args),
    Performance(bench_peers::page::Args),
    Quality(quality::Args),
    ModelSheet(model_sheet::Args),
}

/// The command line, with the front door's description of each command.
fn command_line() -> clap::Command {
    let described = |all: clap::Command, command: &LabCommand| {
        all.mut_subcommand(command.name, |one| one.about(command.about))
    };
    LAB_COMMANDS.iter().fold(Cli::command(), described)
}

fn main() -> ExitCode {
    let matches = command_line().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match &cli.command {
        Command::BenchAttacks(args) => bench_attacks::run(args),
        Command::BenchChanges(args) => bench_changes::run(args),
        Command::BenchDay(args) => bench_day::run(args),
        Command::BenchDrafts(args) => bench_drafts::run(args),
        Command::BenchPair(args) => bench_pair::run(args),
        Command::BenchPeers(args) => bench_peers::run(args),
        Command::BenchServe(args) => bench_serve::run(args),
        Command::BenchShip(args) => bench_ship::run(args),
        Command::BenchSpeculation(args) => bench_speculation::run(args),
        Command::BenchState(args) => bench_state::run(args),
        Command::BenchTexts(args) => bench_texts::run(args),
        Command::CheckTwin(args) => check_twin::run(args),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Performance(args) => bench_peers::page::run(args),
        Command::Quality(args) => quality::run(args),
        Command::ModelSheet(args) => model_sheet::run(args),
    };
    fail::conclude(outcome.map(|()| ExitCode::SUCCESS))
}

#[cfg(test)]
mod tests {
    use super::{Cli, LAB_COMMANDS, command_line};
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        command_line().debug_assert();
    }

    #[test]
    fn the_front_door_lists_these_commands() {
        let own = Cli::command();
        let own = own.get_subcommands().map(|command| command.get_name());
        let listed = LAB_COMMANDS.iter().map(|command| command.name);
        assert_eq!(own.collect::<Vec<_>>(), listed.collect::<Vec<_>>());
    }
}
