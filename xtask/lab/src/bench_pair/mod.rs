//! `cargo xtask bench-pair`: two lanes of one thread that share every kernel, beside one lane, and beside one device with two
//! threads. All of a comparison take turns in one process, so that a machine that is slower for a while is so for all.

mod cost;
mod cuts;
mod gpu;
mod machines;
mod measure;
mod npu;
mod report;

use crate::goal::Goal;
use crate::output;
use crate::precision::Precision;
use crate::subject::{LLAMA_1B, Subject};
use anyhow::Result;
use clap::ValueEnum;
use heg_runtime::Loaded;
use heg_spec::policy::{PairLevel, Synchronisation};
use machines::{Machine, Shape};
use measure::{Decoding, Kernel, Measured, in_turn};
use report::Report;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use xtask::workspace::note;

/// Arguments of `cargo xtask bench-pair`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A model by name, or a Hugging Face folder
    #[arg(long, value_name = "MODEL", default_value = LLAMA_1B)]
    model: String,
    /// A compiled bundle, in place of a model
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    bundle: Option<PathBuf>,
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

pub(crate) fn run(args: &Args) -> Result<()> {
    let bundle = match &args.bundle {
        Some(bundle) => bundle.clone(),
        None => Subject::find(Some(&args.model))?.bundle(Precision::EIGHT_BITS)?,
    };
    let loaded = Loaded::open(&bundle)?;
    let rounds = args.rounds.get();
    let mut report = Report::new(&loaded.bundle().manifest().model.name, rounds);
    let parts = match args.only.as_slice() {
        [] => &Part::value_variants()[..4],
        only => only,
    };
    for part in parts {
        note(format!("measuring {part:?}"));
        let first = report.lines.len();
        match part {
            Part::Ffn => kernels(&loaded, rounds, &mut report)?,
            Part::Decode => decoding(&loaded, rounds, &mut report)?,
            Part::Memory => cost::memory(&loaded, &bundle, &mut report)?,
            Part::Waits => cost::waits(&loaded, rounds, &mut report)?,
            Part::Gpu => gpu::pair(&loaded, rounds, &mut report)?,
            Part::Npu => npu::pair(&loaded, rounds, &mut report)?,
            Part::Cuts => cuts::pair(&loaded, rounds, &mut report)?,
        }
        print!("{}", report::table(&report.lines[first..]));
    }
    if let Some(file) = &args.json {
        output::write(file, &output::pretty(&report)?)?;
    }
    Ok(())
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Part {
    /// The last kernel of a layer, over a chunk of a prompt.
    Ffn,
    /// Decode steps.
    Decode,
    /// Memory, beside that of one device.
    Memory,
    /// What waiting costs neighbours, and an idle machine.
    Waits,
    /// The CPU and a GPU as a pair, beside each alone and beside fixed shares; only where it is asked for.
    Gpu,
    /// The CPU and an NPU as a pair, beside the CPU alone; only where it is asked for.
    Npu,
    /// Cuts by measured pieces, beside the best of fixed shares and cuts by speeds of the run; only where it is asked for.
    Cuts,
}

const FAST: Shape = Shape::pair(PairLevel::Tensor, Synchronisation::Fast);
const PLAIN: Shape = Shape::pair(PairLevel::Tensor, Synchronisation::Plain);

/// The last kernel of a layer over a chunk of a prompt.
fn kernels(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    let shapes = [FAST, PLAIN, Shape::one(1), Shape::one(2)];
    let machines = shapes.map(|shape| Machine::new(loaded, shape));
    let mut all = Vec::new();
    for machine in machines {
        all.push(Kernel::new(machine?, CHUNK_TOKENS)?);
    }
    // Of first runs, which read weights from disk, nothing is told.
    let _: [Vec<f64>; 4] = in_turn(&mut all, 0)?;
    let before = all[0].machine.hand_overs();
    let [pair, plain, lane, pool] = in_turn(&mut all, rounds)?;
    let what = format!("ffn of {CHUNK_TOKENS} tokens");
    let pair = report.of(&what, "pair", pair);
    report.add(pair.beside("one lane", lane, [Goal::AtLeast(1.8)]));
    report.add(pair.beside("two threads", pool, [Goal::AtLeast(0.97)]));
    report.add(pair.beside("plain waits", plain, []));
    for _ in 0..RUNS_TO_HAND_OVER {
        all[0].run_ms()?;
    }
    report.hand_overs(&what, before, all[0].machine.hand_overs());
    Ok(())
}

/// Decode steps of one answer.
fn decoding(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    let shapes = [FAST, PLAIN, Shape::one(2)];
    let mut all = Vec::new();
    for machine in shapes.map(|shape| Machine::new(loaded, shape)) {
        all.push(Decoding::new(machine?)?);
    }
    let _: [Vec<f64>; 3] = in_turn(&mut all, 0)?;
    let before = all[0].machine.hand_overs();
    let [pair, plain, pool] = in_turn(&mut all, rounds)?;
    let pair = report.of("decode", "pair", pair);
    report.add(pair.beside("two threads", pool, [Goal::AtLeast(0.95)]));
    report.add(pair.beside("plain waits", plain, [Goal::AtLeast(1.1)]));
    report.hand_overs("decode", before, all[0].machine.hand_overs());
    Ok(())
}

/// Tokens of a chunk: those of the papers.
const CHUNK_TOKENS: usize = 256;

/// Runs of a kernel beside those that are compared. Chosen: it has a few hand-overs, and of hundreds the rarest are wanted.
const RUNS_TO_HAND_OVER: usize = 64;

/// Measurements of each side. Chosen: medians of fewer move by some percent.
const ROUNDS: NonZeroUsize = match NonZeroUsize::new(15) {
    Some(rounds) => rounds,
    None => NonZeroUsize::MIN,
};

const AFTER_HELP: &str = "\
Two lanes of CPU programs with one thread each run every kernel together. Beside them stand one lane, and one device with
two threads, on the same rows of the same bundle. Times are medians of all rounds; a ratio above 1 says how much faster the
pair is. A hand-over is the time from the end of one side's part until the other goes on. `--only gpu` measures a pair of
unlike devices: a thread of the CPU and the GPU that `HEG_VK_DRIVER` names; `--only npu` a thread and an NPU, by the pieces of
a bundle that was compiled with `--partition host-pair-npu`. `--only cuts` measures pieces of products first, as
`heg profile` does, and then the cuts that they give. Devices with static shapes are simulated:
`cargo xtask evaluate --paper heterollm`.

Examples:
  cargo xtask bench-pair --json pair.json
  cargo xtask bench-pair --model smollm2-135m-instruct --rounds 25
  LP_NUM_THREADS=1 cargo xtask bench-pair --only gpu --model smollm2-135m-instruct";
