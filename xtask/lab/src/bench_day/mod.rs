//! `cargo xtask bench-day`: a person's day with three agents, on HEG, GenAI and llama.cpp's router. The figure is the time that the
//! person waits; beside it stand the background's work and the memory.

mod background;
pub(crate) mod client;
mod day;
pub(crate) mod dialect;
mod genai;
pub(crate) mod models;
mod person;
mod report;
mod server;

use crate::output;
use crate::precision::{Kv, Precision};
use crate::provenance::Provenance;
use crate::quality;
use crate::subject::{LLAMA_1B, SMOLLM2};
use anyhow::{Context, Result};
use background::Done;
use clap::ValueEnum;
use client::Client;
use day::{Day, Sizes};
use genai::GenAiModels;
use models::Models;
use report::{Lived, Report};
use server::{DIGESTS_AT_ONCE, Program};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;
use xtask::workspace::note;

/// Arguments of `cargo xtask bench-day`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The model that the person talks to: by name, or a Hugging Face folder
    #[arg(long, value_name = "MODEL", default_value = LLAMA_1B)]
    chat: String,
    /// The model that writes digests in the background
    #[arg(long, value_name = "MODEL", default_value = SMOLLM2)]
    digest: String,
    /// Systems to measure, in this order
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "heg,genai,llama-server"
    )]
    systems: Vec<Named>,
    /// HEG's keys and values; GenAI's are integers of 8 bits, llama.cpp's floats of 16
    #[arg(long, value_enum, default_value_t = Kv::Bf16)]
    kv: Kv,
    /// Number of agents
    #[arg(long, value_name = "N", default_value_t = count(3))]
    agents: NonZeroUsize,
    /// Questions of the person
    #[arg(long, value_name = "N", default_value_t = count(40))]
    turns: NonZeroUsize,
    /// Tokens of each agent's instructions and tools
    #[arg(long, value_name = "N", default_value_t = count(10_000))]
    instructions: NonZeroUsize,
    /// The binary to measure [default: heg of this checkout, built for release]
    #[arg(long, value_name = "PATH")]
    heg: Option<PathBuf>,
    /// Days that each system lives, in turns
    #[arg(long, value_name = "N", default_value_t = count(2))]
    rounds: NonZeroUsize,
    /// Seed of the day
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Also write all figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A system of `--systems`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Named {
    /// `heg serve`
    Heg,
    /// OpenVINO GenAI, as a library
    Genai,
    /// llama.cpp's server
    LlamaServer,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let sizes = Sizes {
        agents: args.agents.get(),
        turns: args.turns.get(),
        instructions: args.instructions.get(),
        seed: args.seed,
    };
    let day = Day::draw(sizes);
    let models = Models::find(&args.chat, &args.digest)?;
    let precision = Precision {
        kv: args.kv.form(),
        ..Precision::EIGHT_BITS
    };
    let mut systems = Vec::new();
    for named in &args.systems {
        systems.push((
            named,
            named.prepare(&models, args.heg.as_deref(), precision)?,
        ));
    }
    let mut report = Report::new(sizes, [&args.chat, &args.digest], Provenance::now()?);
    for round in 1..=args.rounds.get() {
        for (named, system) in &systems {
            let name = named.name();
            note(format!("round {round} of {}: {name}", args.rounds));
            report.add(name, system.live(&day)?);
        }
    }
    print!("{}", report.table());
    note("accuracy of the same build and settings");
    let accuracy = quality::beside_speed(precision);
    report.accuracy = accuracy.as_ref().and_then(quality::Report::judged_kl);
    if let Some(accuracy) = accuracy {
        print!(
            "\nAccuracy at these settings, on a real model:\n{}",
            accuracy.table()
        );
    }
    match &args.json {
        Some(file) => output::write(file, &output::pretty(&report)?),
        None => Ok(()),
    }
}

impl Named {
    fn name(self) -> &'static str {
        match self {
            Self::Heg => "HEG",
            Self::Genai => "GenAI",
            Self::LlamaServer => "llama-server",
        }
    }

    fn prepare(self, models: &Models, heg: Option<&Path>, precision: Precision) -> Result<System> {
        Ok(match self {
            Self::Heg => System::Server(Program::Heg(models.of_heg(heg, precision)?)),
            Self::Genai => System::Library(models.of_genai()?),
            Self::LlamaServer => System::Server(Program::LlamaServer(models.of_llama()?)),
        })
    }
}

/// A system with its models.
enum System {
    Server(Program),
    Library(GenAiModels),
}

impl System {
    /// Lives a day on the system, freshly started.
    fn live(&self, day: &Day) -> Result<Lived> {
        match self {
            Self::Server(program) => live(day, program),
            Self::Library(genai) => genai.live(day),
        }
    }
}

/// Lives a day on a server.
fn live(day: &Day, program: &Program) -> Result<Lived> {
    let folder = tempfile::tempdir().context("cannot create a folder for a day")?;
    let mut server = program.start(day, folder.path())?;
    let (over, done) = (AtomicBool::new(false), Done::default());
    let client = Client {
        dialect: program.dialect(),
        port: server.port(),
        over: &over,
    };
    let begin = Instant::now();
    let mut peak_bytes = 0;
    let turns = thread::scope(|scope| {
        let done = &done;
        for first in 0..DIGESTS_AT_ONCE {
            scope.spawn(move || done.write_digests(day, client, first, DIGESTS_AT_ONCE));
        }
        scope.spawn(|| done.index(day, client));
        let restart = || {
            peak_bytes = server.tree().resident_bytes();
            server.restart()
        };
        let turns = person::live(day, client, restart, |number, times| {
            note(format!(
                "question {}: {:.1} s",
                number + 1,
                times.wait_ms() / 1e3
            ));
        });
        peak_bytes = peak_bytes.max(server.tree().resident_bytes());
        over.store(true, Ordering::Relaxed);
        turns
    });
    let secs = begin.elapsed().as_secs_f64();
    Ok(Lived {
        turns: turns.with_context(|| server.last_words())?,
        secs,
        done: done.sums(),
        refusal: done.refusal(),
        peak_bytes,
    })
}

/// A number of an option's default.
pub(crate) const fn count(number: usize) -> NonZeroUsize {
    match NonZeroUsize::new(number) {
        Some(number) => number,
        None => NonZeroUsize::MIN,
    }
}

const AFTER_HELP: &str = "\
A day: the person asks one agent after the other, in no order. A question is looked up (a vector, eight documents
scored), leads to a tool's call of 32 tokens and, behind the tool's result, to an answer of 96. Prompts are an agent's
whole conversation, by token ids. Meanwhile the small model writes digests of texts, two at a time, and passages get
vectors. In the middle of the day the system is killed (kill -9) and started again.

The person waits for the search, the whole call, the first token of the answer and, once, the start. A system that gives
other answers in another round is named. Memory is the resident memory of all processes.

The reranker has the embedder's layers under a random head: its cost is real, its scores are not. Weights have 8 bits on
all sides. llama-server runs as a router with a process for each model, all loaded, and a slot for each agent. GenAI,
a library, keeps prefixes, and has its background in a process of its own.

The first time, this makes what bench-peers makes. Models of 8 192 tokens want fewer instructions.

Examples:
  cargo xtask bench-day
  cargo xtask bench-day --chat smollm2-135m-instruct --instructions 3000 --turns 24
  cargo xtask bench-day --systems heg --rounds 1 --json day.json";
