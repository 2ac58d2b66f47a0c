//! `cargo xtask lent`: measures HEG on a machine that cannot build it, such as one that is lent for minutes. `pack` makes a
//! folder to carry there, whose `run.sh` writes lines of JSON; `read` makes tables of them.

mod pack;
mod read;

use anyhow::Result;
use std::path::PathBuf;

/// Arguments of `cargo xtask lent`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Build the programs, and put them into a folder with a small model and a script
    Pack(PackArgs),
    /// Print tables of what the script wrote
    Read {
        /// File that `run.sh` wrote
        file: PathBuf,
    },
}

/// Arguments of `cargo xtask lent pack`.
#[derive(clap::Args)]
pub(super) struct PackArgs {
    /// Folder to make or to make anew
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Folder of Debian packages with a Vulkan loader, for a machine without one
    #[arg(long, value_name = "DIR")]
    loader: Option<PathBuf>,
    /// llama.cpp's `llama-bench`, built for the other machine, to measure beside
    #[arg(long, value_name = "FILE")]
    llama_bench: Option<PathBuf>,
    /// Pack a quick build, to rehearse
    #[arg(long)]
    dev: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Pack(args) => pack::run(args),
        Command::Read { file } => read::run(file),
    }
}

const AFTER_HELP: &str = "\
Examples:
  cargo xtask lent pack target/lent            a folder to copy to the other machine
  bash target/lent/run.sh figures.jsonl        there: all steps; names of steps behind the file choose some
  cargo xtask lent read figures.jsonl          here: tables";
