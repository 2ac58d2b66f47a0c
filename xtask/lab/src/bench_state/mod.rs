//! `cargo xtask bench-state`: prompts that are not read again. How soon an answer begins behind kept and baked state, what
//! keeping costs an answer that runs meanwhile, and whether a stranger could tell what somebody else has kept.

mod ask;
mod baked;
mod kept_folder;
mod restart;
mod strangers;
mod writing;

use crate::bench_attacks::server::Start;
use crate::lines::{self, Report};
use crate::output;
use crate::process::text;
use crate::subject::MeasuredArgs;
use anyhow::Result;
use clap::ValueEnum;
use kept_folder::KeptFolder;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use xtask::workspace::note;

/// Arguments of `cargo xtask bench-state`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    measured: MeasuredArgs,
    /// Machine of the server: a shipped SoC file's name, or a file
    #[arg(long, value_name = "SOC", default_value = "host-cpu")]
    soc: String,
    /// Tokens of the prompt that is kept
    #[arg(long, value_name = "N", default_value_t = TOKENS)]
    tokens: NonZeroUsize,
    /// Times that each side of a comparison is measured
    #[arg(long, value_name = "N", default_value_t = ROUNDS)]
    rounds: NonZeroUsize,
    /// Pairs of prompts that a stranger asks: one that somebody else has kept, one that nobody has
    #[arg(long, value_name = "N", default_value_t = PAIRS)]
    pairs: NonZeroUsize,
    /// Measure only these
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// Also write all figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    /// An answer after the server was killed and started again, with and without kept state.
    Restart,
    /// An answer beside another client's prompt, which is kept or is not.
    Writing,
    /// Prompts of a client that another one has kept, or nobody.
    Strangers,
    /// An answer of `heg run` behind a baked state.
    Baked,
}

/// The measured program, and the sizes that all parts share.
struct Bench {
    heg: PathBuf,
    bundle: PathBuf,
    soc: String,
    tokens: usize,
    rounds: usize,
    pairs: usize,
}

impl Bench {
    /// The settings of a server that keeps state in a folder, or none.
    fn server(&self, kept: Option<&KeptFolder>) -> Start {
        let mut options = vec!["--soc".to_owned(), self.soc.clone()];
        match kept {
            Some(folder) => options.extend(["--state-dir".to_owned(), text(folder.path())]),
            None => options.extend(["--state-mib", "0"].map(str::to_owned)),
        }
        Start {
            heg: self.heg.clone(),
            bundle: self.bundle.clone(),
            options,
            address_gib: ADDRESS_GIB,
            files: FILES,
            tokens: true,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let bench = Bench {
        heg: args.measured.heg()?,
        bundle: args.measured.bundle()?,
        soc: args.soc.clone(),
        tokens: args.tokens.get(),
        rounds: args.rounds.get(),
        pairs: args.pairs.get(),
    };
    let mut report = Report::new(&bench.bundle);
    let parts = match args.only.as_slice() {
        [] => Part::value_variants(),
        only => only,
    };
    for part in parts {
        note(format!("measuring {part:?}"));
        let first = report.lines.len();
        match part {
            Part::Restart => restart::measure(&bench, &mut report)?,
            Part::Writing => writing::measure(&bench, &mut report)?,
            Part::Strangers => strangers::measure(&bench, &mut report)?,
            Part::Baked => baked::measure(&bench, &mut report)?,
        }
        print!("{}", lines::table(&report.lines[first..]));
    }
    if let Some(file) = &args.json {
        output::write(file, &output::pretty(&report)?)?;
    }
    Ok(())
}

/// Chosen: an agent's instructions and tools.
const TOKENS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

const ROUNDS: NonZeroUsize = NonZeroUsize::new(5).unwrap();

const PAIRS: NonZeroUsize = NonZeroUsize::new(200).unwrap();

/// Chosen: above what the caches of hundreds of prompts reserve, each for a whole context.
const ADDRESS_GIB: u64 = 4096;

const FILES: u64 = 1024;

const AFTER_HELP: &str = "\
Servers are started for each measurement and killed as by `kill -9`. A first token is counted from the start of the program.
The answers with and without state have to be the same, or the command fails. Pages that are out of memory were advised away;
beside them stands the time of reading the same files.

Examples:
  cargo xtask bench-state --json state.json
  cargo xtask bench-state --model smollm2-135m-instruct --tokens 2048 --only restart,writing
  cargo xtask bench-state --bundle model.heg --only strangers --pairs 400";
