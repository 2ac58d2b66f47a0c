//! `hegc`: from a model to a bundle. This file parses the command line, calls the command and turns an error into
//! lines and an exit status.

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use hegc::output::OutputFolder;
use hegc::{compile, fail, fetch, synth};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The command line of `hegc`.
#[derive(Parser)]
#[command(
    name = "hegc",
    version,
    about = "Compiles language models to HEG bundles, which `heg` runs.",
    after_help = AFTER_HELP,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Turn a model (RON file, GGUF file or Hugging Face folder) into one bundle, or print what a pass makes of it
    Compile(compile::Args),
    /// Download a real model by name, check it, and print the path of its file
    Fetch(fetch::Args),
    /// Write a Hugging Face folder with a known model's shapes and random weights
    Synth(synth::Args),
    /// Make prompts for the process that starts this one
    #[command(name = hegc::TEXT_WORKER, hide = true)]
    TextWorker,
    /// Write completions and man pages
    #[command(hide = true)]
    Pages {
        /// The folder to write to
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    fail::conclude(dispatch(&Cli::parse().command))
}

fn dispatch(command: &Command) -> anyhow::Result<ExitCode> {
    let output = OutputFolder::below(Path::new(""));
    match command {
        Command::Compile(args) => compile::run(args, &output),
        Command::Fetch(args) => fetch::run(args, &output),
        Command::Synth(args) => synth::run(args, &output),
        Command::Pages { folder } => heg_pages::write("hegc", Cli::command(), folder)
            .with_context(|| format!("cannot write pages to `{}`", folder.display())),
        Command::TextWorker => return Ok(heg_confine::work()),
    }?;
    Ok(ExitCode::SUCCESS)
}

const AFTER_HELP: &str = "\
Bundles are written to `bundles` in the current folder, with the build cache in `bundles/store` and models in
`bundles/models`; HEG_BUNDLES names another folder.

Start here:
  hegc compile path/to/hf-folder                 writes bundles/NAME.heg
  hegc compile $(hegc fetch smollm2-135m-instruct)
  hegc synth --like llama-3.2-1b                 a model to measure with, no licence needed

Exit status: 0 fine · 2 your input · 4 this machine (files, network, missing programs) · 70 a bug of ours.";

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
