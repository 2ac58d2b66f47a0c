//! `cargo xtask bench-changes`: an answer, a vector and scores in turns, so that each request is to another model than the one
//! before it. HEG maps all models; llama.cpp's router ends a model's process and starts the next one's.

mod side;

use crate::bench_day::client::Client;
use crate::bench_day::count;
use crate::bench_day::dialect::{CHAT, Prompt};
use crate::bench_day::models::{Models, heg_program};
use crate::disk;
use crate::goal::Goal;
use crate::lines::{self, Line, Report};
use crate::output;
use crate::precision::Precision;
use crate::quality;
use crate::subject::{LLAMA_1B, Subject};
use crate::words;
use anyhow::{Context, Result};
use heg_sched::Class;
use side::{Room, Side, Three};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use xtask::workspace::note;

/// Arguments of `cargo xtask bench-changes`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The model that answers: by name, or a Hugging Face folder
    #[arg(long, value_name = "MODEL", default_value = LLAMA_1B)]
    chat: String,
    /// The binary to measure [default: heg of this checkout, built for release]
    #[arg(long, value_name = "PATH")]
    heg: Option<PathBuf>,
    /// Rounds of an answer, a vector and scores, for each system
    #[arg(long, value_name = "N", default_value_t = count(300))]
    rounds: NonZeroUsize,
    /// Times that each system is started, in turns, with an equal part of the rounds
    #[arg(long, value_name = "N", default_value_t = count(3))]
    blocks: NonZeroUsize,
    /// Also write all figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the rounds of a system took.
#[derive(Debug, Default)]
struct Taken {
    rounds_ms: Vec<f64>,
    /// From a request for an answer to its first token, behind a request to another model.
    first_ms: Vec<f64>,
    /// Memory of all processes at the end of a block, and the part of it that belongs to no file.
    resident_mb: Vec<f64>,
    anonymous_mb: Vec<f64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let embed = Models::embedder()?;
    let three = Three {
        rerank: Models::reranker(&embed)?,
        chat: Subject::find(Some(&args.chat))?,
        embed,
    };
    let heg = heg_program(args.heg.as_deref())?;
    let sides = [
        three.on_heg(&heg, Room::ForAll)?,
        three.on_router(Room::ForOne)?,
        three.on_router(Room::ForAll)?,
    ];
    let mut taken = sides.each_ref().map(|_| Taken::default());
    let blocks = args.blocks.get().min(args.rounds.get());
    for block in 0..blocks {
        for (side, taken) in sides.iter().zip(&mut taken) {
            note(format!("block {} of {blocks}: {}", block + 1, side.name()));
            // The first blocks have what does not go into equal parts.
            let rounds = (args.rounds.get() + blocks - 1 - block) / blocks;
            let lived = taken.live(side, rounds);
            lived.with_context(|| format!("cannot measure {}", side.name()))?;
        }
    }
    let frugal = three.on_heg(&heg, Room::ForOne)?;
    let mut report = Report::new(frugal.weights());
    report_rounds(&mut report, sides.each_ref().map(Side::name), taken);
    note("a change to a model on disk");
    report.add(cold(&frugal, blocks)?);
    print!("{}", lines::table(&report.lines));
    note("accuracy of the same build and settings");
    if let Some(accuracy) = quality::beside_speed(Precision::EIGHT_BITS) {
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

impl Taken {
    /// Starts a system, asks each model once, and takes the times of rounds.
    fn live(&mut self, side: &Side, rounds: usize) -> Result<()> {
        let folder = tempfile::tempdir().context("cannot create a folder for a server")?;
        let server = side.start(folder.path())?;
        let over = AtomicBool::new(false);
        let client = Client {
            dialect: side.dialect(),
            port: server.port(),
            over: &over,
        };
        round(client, 0)?;
        for number in 1..=rounds {
            let begin = Instant::now();
            self.first_ms.push(round(client, number)?);
            self.rounds_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        let memory = server.tree().proportional();
        self.resident_mb.push(memory.resident_bytes as f64 / 1e6);
        self.anonymous_mb.push(memory.anonymous_bytes as f64 / 1e6);
        Ok(())
    }
}

/// Asks for an answer, a vector and scores. Returns the time to the answer's first token, in ms.
fn round(client: Client<'_>, number: usize) -> Result<f64> {
    let first_ms = answer(client, number)?;
    let texts = words::texts(TEXT, 1 + DOCUMENTS);
    let (query, documents) = texts.split_first().context("no texts to ask for")?;
    client.embed(std::slice::from_ref(query), Class::Reactive)?;
    client.rerank(query, documents)?;
    Ok(first_ms)
}

/// Asks for an answer behind a prompt of its own, of which nothing is known. Returns the time to its first token, in ms.
fn answer(client: Client<'_>, number: usize) -> Result<f64> {
    let ids: Vec<u32> = (0..PROMPT)
        .map(|at| 1000 + (number * 31 + at * 7) as u32 % 3000)
        .collect();
    let answer = client.complete(Prompt {
        model: CHAT,
        ids: &ids,
        tokens: ANSWER,
        class: Class::Reactive,
    })?;
    Ok(answer.first.as_secs_f64() * 1e3)
}

/// The lines of a report on rounds, the first system being ours.
fn report_rounds(report: &mut Report, names: [&str; 3], taken: [Taken; 3]) {
    let [heg, swapping, resident] = taken;
    let [ours, swaps, holds] = names;
    let (what, rate) = ("a round of three models", Goal::AtLeast(20.0));
    let line = Line::of(what, ours, heg.rounds_ms.clone());
    report.add(line.beside(swaps, swapping.rounds_ms, [rate]));
    let line = Line::of(what, ours, heg.rounds_ms);
    report.add(line.beside(holds, resident.rounds_ms, []));
    let (what, bound) = ("first token behind another model", Goal::AtMost(150.0));
    let line = Line::of(what, ours, heg.first_ms.clone()).held_to(bound);
    report.add(line.beside(swaps, swapping.first_ms, []));
    let line = Line::of(what, ours, heg.first_ms);
    report.add(line.beside(holds, resident.first_ms, []));
    let line = Line::of("resident memory", ours, heg.resident_mb).in_unit("MB");
    report.add(line.beside(holds, resident.resident_mb, []));
    let line = Line::of("memory beside weights", ours, heg.anonymous_mb).in_unit("MB");
    let line = line.held_to(Goal::AtMost(60.0));
    report.add(line.beside(holds, resident.anonymous_mb, []));
}

/// The first token of a model whose weights were released and are on disk alone, beside reading their file.
fn cold(side: &Side, samples: usize) -> Result<Line> {
    let folder = tempfile::tempdir().context("cannot create a folder for a server")?;
    let server = side.start(folder.path())?;
    let weights = side.weights();
    let over = AtomicBool::new(false);
    let client = Client {
        dialect: side.dialect(),
        port: server.port(),
        over: &over,
    };
    let (mut first_ms, mut read_ms) = (Vec::new(), Vec::new());
    let texts = words::texts(TEXT, 1);
    for number in 0..samples {
        // Another model's turn: nothing maps its pages behind it.
        client.embed(&texts, Class::Reactive)?;
        disk::forget(weights)?;
        let begin = Instant::now();
        disk::read(weights)?;
        read_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        disk::forget(weights)?;
        first_ms.push(answer(client, number)?);
    }
    let name = format!(
        "reading {:.0} MB",
        std::fs::metadata(weights)?.len() as f64 / 1e6
    );
    let line = Line::of("first token, weights on disk", side.name(), first_ms);
    Ok(line.beside(&name, read_ms, [Goal::AtLeast(1.0 / 1.1)]))
}

/// Tokens of a prompt, of its answer, and of a text. Chosen: short, so that changes count and not what is computed.
const PROMPT: usize = 16;
const ANSWER: usize = 1;
const TEXT: usize = 16;
const DOCUMENTS: usize = 2;

const AFTER_HELP: &str = "\
A round: the first token of an answer behind 16 tokens, the vector of a text, and the scores of two documents, each by another
model: a change of model before each request. Prompts are all different. HEG serves the three bundles mapped. llama-server runs
as a router, once with room for one model, so that it ends one process and starts the next, and once with room for all three.

Weights have 8 bits on all sides, and are in memory. In the last line HEG serves with `--resident-mib` for one bundle, and the
bundle that is asked for was released and put out of memory: beside it stands the time of reading that file.

Examples:
  cargo xtask bench-changes
  cargo xtask bench-changes --chat smollm2-135m-instruct --rounds 30 --blocks 1";
