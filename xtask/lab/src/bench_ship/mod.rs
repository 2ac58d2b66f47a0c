//! `cargo xtask bench-ship`: bundles on their way to a device, over Debian's registry on loopback. How soon a pull ends beside
//! skopeo and curl, what an interrupted pull and an edit move, and what a name costs beside a file.

mod edits;
mod killed;
mod looks;
mod pulls;
mod registry;
mod world;

use crate::lines::{self, Report};
use crate::output;
use crate::subject::MeasuredArgs;
use anyhow::Result;
use clap::ValueEnum;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use world::World;
use xtask::workspace::note;

/// Arguments of `cargo xtask bench-ship`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    measured: MeasuredArgs,
    /// Times that each side of a comparison is measured
    #[arg(long, value_name = "N", default_value_t = ROUNDS)]
    rounds: NonZeroUsize,
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
    /// A whole pull beside `skopeo copy` and four `curl -r`.
    Pulls,
    /// A pull that is killed at 60% and started again.
    Killed,
    /// Another template, another tensor, other rows of the embedding, and other blobs if there are some.
    Edits,
    /// Opening by name, and `heg fit` with and without `--measure`.
    Looks,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (heg, bundle) = (args.measured.heg()?, args.measured.bundle()?);
    let rounds = args.rounds.get();
    let mut report = Report::new(&bundle);
    note("pushing the bundle");
    let world = World::new(heg, bundle)?;
    let parts = match args.only.as_slice() {
        [] => Part::value_variants(),
        only => only,
    };
    for part in parts {
        note(format!("measuring {part:?}"));
        let first = report.lines.len();
        match part {
            Part::Pulls => pulls::measure(&world, rounds, &mut report)?,
            Part::Killed => killed::measure(&world, rounds, &mut report)?,
            Part::Edits => edits::measure(&world, rounds, &mut report)?,
            Part::Looks => looks::measure(&world, rounds, &mut report)?,
        }
        print!("{}", lines::table(&report.lines[first..]));
    }
    if let Some(file) = &args.json {
        output::write(file, &output::pretty(&report)?)?;
    }
    Ok(())
}

const ROUNDS: NonZeroUsize = NonZeroUsize::new(3).unwrap();

const AFTER_HELP: &str = "\
Needs Debian's docker-registry, skopeo and curl. Sides take turns; each pull begins with an empty store on the disk of the
checkout. Of the three, heg alone checks all bytes by itself and syncs them to the disk. Bytes are those of the command's
own count, documents and all.

Examples:
  cargo xtask bench-ship --json ship.json
  cargo xtask bench-ship --model smollm2-135m-instruct --only pulls,killed --rounds 5
  cargo xtask bench-ship --bundle model.heg --only edits,looks";
