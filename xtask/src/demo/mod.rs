//! `cargo xtask demo`: the README's first command. Downloads a small real model, compiles it and talks to it, then
//! gives the model in the repository the tasks of a personal agent. Every answer is checked, so that "it works" means
//! that it works.

mod conversation;
mod show;
mod tasks;

use anyhow::Result;
use std::path::PathBuf;
use xtask::fail::Fail;
use xtask::workspace::{self, Build};

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Keep to the model in the repository, and download nothing
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // Before anything is built: without a network the command fails at once.
    let file = match args.offline {
        true => None,
        false => Some(conversation::fetch()?),
    };
    let heg = workspace::build_heg(Build::Dev)?;
    let mut parts = Vec::new();
    if let Some(file) = file {
        parts.push(conversation::run(&heg, &file)?);
    }
    parts.push(tasks::run(&heg)?);
    let questions: usize = parts.iter().map(|part| part.questions).sum();
    let wrong: usize = parts.iter().map(|part| part.wrong).sum();
    if wrong > 0 {
        return Err(Fail::check(format!("{wrong} of {questions} answers are wrong")).into());
    }
    println!("All {questions} answers are correct.");
    for part in parts {
        println!(
            "Talk to it: {} chat {}",
            heg.display(),
            part.bundle.display()
        );
    }
    Ok(())
}

/// The result of a part of the demo.
struct Asked {
    questions: usize,
    wrong: usize,
    /// The bundle of the model.
    bundle: PathBuf,
}

const AFTER_HELP: &str = "\
Does, from a bare clone: gets SmolLM2-135M-Instruct (93 MB), once; builds `heg`; compiles the model to bundles/smollm2-135m-instruct.heg and asks it three questions in one
conversation; compiles the model in tests/fixtures/tiny-agent and asks it for a function call, an
answer from notes and a digest of events. Ends with status 0 only if all six answers are right.

Examples:
  cargo xtask demo
  cargo xtask demo --offline        without the conversation";
