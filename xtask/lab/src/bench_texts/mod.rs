//! `cargo xtask bench-texts`: vectors of texts on HEG, GenAI, ONNX Runtime and llama.cpp: how many texts a second, how soon the first vector
//! comes, and how near vectors are to those in f32.

mod accuracy;
mod library;
mod report;
mod sides;

use crate::bench_day::count;
use crate::bench_day::models::Models;
use crate::output;
use crate::provenance::Provenance;
use accuracy::Exact;
use anyhow::{Context, Result};
use report::Report;
use sides::{Named, Side};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use xtask::workspace::note;

/// Arguments of `cargo xtask bench-texts`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The binary to measure [default: heg of this checkout, built for release]
    #[arg(long, value_name = "PATH")]
    heg: Option<PathBuf>,
    /// Systems to measure, in this order
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "heg,genai,onnxruntime,llama-server"
    )]
    systems: Vec<Named>,
    /// Tokens of a text
    #[arg(long, value_delimiter = ',', value_name = "TOKENS", default_values_t = LENGTHS)]
    lengths: Vec<NonZeroUsize>,
    /// Cores that each system may use, the first ones
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = CORES)]
    cores: Vec<NonZeroUsize>,
    /// Times that each system is measured, in turns
    #[arg(long, value_name = "N", default_value_t = ROUNDS)]
    rounds: NonZeroUsize,
    /// Also write all figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let embedder = Models::embedder()?;
    let mut report = Report::new(Provenance::now()?);
    let sides = args.systems.iter();
    let sides = sides.map(|named| Side::prepare(*named, &embedder, args.heg.as_deref()));
    let sides = sides.collect::<Result<Vec<Side>>>()?;
    for round in 1..=args.rounds.get() {
        for cores in &args.cores {
            for side in &sides {
                let name = side.name();
                note(format!(
                    "round {round} of {}, {cores} cores: {name}",
                    args.rounds
                ));
                let lengths = args.lengths.iter().map(|length| length.get());
                let rates = side.rates(cores.get(), &lengths.collect::<Vec<_>>());
                let rates = rates.with_context(|| format!("cannot measure {name}"))?;
                for (length, texts_per_s) in args.lengths.iter().zip(rates) {
                    let line = format!("{length} tokens, {cores} cores: texts/s");
                    report.add(&line, name, texts_per_s);
                }
            }
        }
        for side in (0..STARTS).flat_map(|_| &sides) {
            report.add_start(side.name(), side.first_vector_ms()?);
        }
    }
    note("comparing vectors with those in f32");
    let exact = Exact::new(&embedder, args.heg.as_deref())?;
    for side in &sides {
        report.add_nearness(side.name(), exact.nearness(side)?);
    }
    print!("{}", report.table());
    match &args.json {
        Some(file) => output::write(file, &output::pretty(&report)?),
        None => Ok(()),
    }
}

/// Chosen: a question, a paragraph, and a page.
const LENGTHS: [NonZeroUsize; 3] = [count(16), count(128), count(512)];

const CORES: [NonZeroUsize; 2] = [count(1), count(2)];

const ROUNDS: NonZeroUsize = count(3);

/// Starts in a round. Chosen: the first one behind other work takes twice as long as those behind it.
const STARTS: usize = 5;

const AFTER_HELP: &str = "\
The model is all-minilm-l6-v2 with weights of 8 bits on all sides. Activations that are multiplied are rounded to 8 bits, too: in
groups of 32 by HEG and llama.cpp, as its plugin chooses by GenAI, a tensor at a time by ONNX Runtime. Texts go to servers in
requests of 64, which give vectors in base64 as for OpenAI's own clients, and to libraries in calls of 64, for two seconds each;
servers are started for each measurement, pinned by taskset. A start is a whole
process: `heg embed`, Python with its library, llama-server and its first answer. Distances are those of 1 000 texts from the
bundle in f32, whose vectors a test compares with the published example.

Examples:
  cargo xtask bench-texts
  cargo xtask bench-texts --systems heg,genai --lengths 128 --cores 2 --rounds 5";
