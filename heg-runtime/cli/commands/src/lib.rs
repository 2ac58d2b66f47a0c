//! Commands of `heg`, which runs, inspects and verifies bundles: one file per command.
//!
//! Parses arguments, calls the library, renders results and errors. A crate of its own, since what only renders is
//! optimised for size, and the program that links it for speed. Exit status: 0 fine, 1 a check found
//! something, 2 the user's input, 3 the bundle does not fit this host or is damaged, 4 environment, 70 a bug.

mod bake;
mod bench;
mod bench_serve;
mod chat;
mod doctor;
mod embed;
mod explain;
mod failure;
mod form;
mod inspect;
mod large_pages;
mod options;
mod platform;
mod profile;
mod rerank;
mod run;
mod score;
mod serve;
#[cfg(feature = "ship")]
mod ship;
mod state;
mod terminal;
mod text_engine;
mod text_guard;
mod told;
mod verify;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use heg_runtime::RuntimeError;

/// Run HEG bundles: language models compiled ahead of time.
#[derive(Parser)]
#[command(name = "heg", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer one prompt
    Run(run::Arguments),
    /// Talk with the model, keeping the conversation in its KV cache
    Chat(chat::Arguments),
    /// Serve the model to many clients at once over OpenAI's and Anthropic's APIs
    Serve(serve::Arguments),
    /// Read once what conversations begin with, and write a bundle that has it
    Bake(bake::Arguments),
    /// Show or remove what `heg serve` has kept of prompts for later runs
    State(state::Arguments),
    /// Show what a bundle holds
    Inspect(inspect::Arguments),
    /// Hash every section of a bundle and compare
    Verify(verify::Arguments),
    /// Ask every kernel for its known answer on this machine's devices
    Doctor(doctor::Arguments),
    /// Measure prefill and decode on this machine
    Bench(bench::Arguments),
    /// Score a text: its likelihood, and how far the model is from another one
    Score(score::Arguments),
    /// Print the vectors of texts, with a model that gives them
    Embed(embed::Arguments),
    /// Order documents by how well they answer a query, with a model that scores them
    Rerank(rerank::Arguments),
    /// Say why a request of a run was slow, from the run's trace
    Explain(explain::Arguments),
    /// Replay a trace against a server, and measure how long its answers take
    BenchServe(bench_serve::Arguments),
    /// Measure each kernel on this machine, for predictions
    Profile(profile::Arguments),
    #[cfg(feature = "ship")]
    #[command(flatten)]
    Ship(ship::Command),
    /// Make prompts and compile forms for the process that starts this one
    #[command(hide = true)]
    TextWorker,
    /// Run a bundle on a GPU for the process that starts this one
    #[command(hide = true)]
    GpuExaminer {
        /// The model and the machine to run
        question: OsString,
    },
    /// Write completions and man pages
    #[command(hide = true)]
    Pages {
        /// The folder to write to
        folder: PathBuf,
    },
}

impl Command {
    /// Returns whether the command decodes for long, or measures the speed of decoding.
    fn stays(&self) -> bool {
        match self {
            Self::Chat(_) | Self::Bench(_) | Self::Profile(_) => true,
            Self::Serve(_) => true,
            Self::BenchServe(_) | Self::Score(_) | Self::Embed(_) | Self::Rerank(_) => false,
            Self::Run(_) | Self::Inspect(_) | Self::Verify(_) | Self::Doctor(_) => false,
            Self::Bake(_) | Self::State(_) | Self::Explain(_) => false,
            Self::TextWorker | Self::GpuExaminer { .. } | Self::Pages { .. } => false,
            #[cfg(feature = "ship")]
            Self::Ship(_) => false,
        }
    }
}

/// Name of the subcommand that runs the worker.
const TEXT_WORKER: &str = "text-worker";

/// Name of the subcommand that examines a GPU.
const GPU_EXAMINER: &str = "gpu-examiner";

const EXAMPLES: &str = "Examples:
  heg run model.heg --prompt 'Will it rain in Oslo tomorrow?' --max-tokens 64
  heg run model.heg --prompt-ids '[1, 15, 27]' --max-tokens 8 --temperature 0 --json
  heg run model.heg --messages conversation.json --stats
  heg chat model.heg
  heg inspect model.heg --json | jq .model";

/// Runs the command that the process was started with, and returns its exit status.
pub fn main() -> ExitCode {
    let started = Instant::now();
    let arguments = Arguments::parse();
    if matches!(arguments.command, Command::TextWorker) {
        return heg_confine::work();
    }
    if arguments.command.stays() {
        large_pages::ask_for();
    }
    platform::end_plainly_on_lost_pages();
    // The panic's own message and location are on standard error already.
    let outcome = std::panic::catch_unwind(|| dispatch(&arguments.command, started));
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => failure::report(&error),
        Err(_) => failure::report_bug(),
    }
}

fn dispatch(command: &Command, started: Instant) -> anyhow::Result<()> {
    match command {
        Command::Run(arguments) => run::run(arguments, started),
        Command::Chat(arguments) => chat::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Bake(arguments) => bake::run(arguments),
        Command::State(arguments) => state::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Embed(arguments) => embed::run(arguments),
        Command::Rerank(arguments) => rerank::run(arguments),
        Command::Score(arguments) => score::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::BenchServe(arguments) => bench_serve::run(arguments),
        Command::Profile(arguments) => profile::run(arguments),
        #[cfg(feature = "ship")]
        Command::Ship(command) => ship::run(command),
        Command::GpuExaminer { question } => {
            println!(
                "{}",
                heg_runtime::exec::examine(question).map_err(RuntimeError::from)?
            );
            Ok(())
        }
        Command::Pages { folder } => heg_pages::write("heg", Arguments::command(), folder)
            .with_context(|| format!("cannot write pages to `{}`", folder.display())),
        // Handled earlier: it has no errors to report, and nobody to report them to.
        Command::TextWorker => Ok(()),
    }
}
