//! `cargo xtask bench-peers`: HEG compared with OpenVINO GenAI and llama.cpp on the same weights, in the same run. All
//! sides take turns (A B C A B C …), each measurement in a separate process, and medians are compared: figures of a
//! shared machine drift, ratios within one run hardly do.

pub(crate) mod genai;
mod goals;
mod llama;
mod long;
pub(crate) mod ours;
pub(crate) mod page;
mod report;
mod samples;

use crate::output;
use crate::precision::PrecisionArgs;
use crate::process::PeakMemory;
use crate::provenance::Provenance;
use crate::quality;
use crate::subject::Subject;
use anyhow::Result;
use clap::ValueEnum;
use heg_spec::Isa;
use long::Long;
use ours::Ours;
use report::Report;
use samples::Samples;
use std::num::NonZeroU32;
use std::path::PathBuf;
use xtask::workspace::note;

/// Arguments of `cargo xtask bench-peers`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A model by name, or a Hugging Face folder [default: llama-3.2-1b, synthesised]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    precision: PrecisionArgs,
    /// The same model, exported for GenAI with such weights already [default: exported with optimum-cli]
    #[arg(long, value_name = "DIR")]
    genai_model: Option<PathBuf>,
    /// Engines to measure beside HEG
    #[arg(long, value_enum, value_delimiter = ',', default_value = "genai,llama")]
    peers: Vec<Peer>,
    /// Instructions that HEG's CPU programs use: avx512-amx, avx512-vnni, avx-vnni, avx2 or portable [default: the best here]
    #[arg(long, value_name = "ISA")]
    isa: Option<Isa>,
    /// Prompts of these lengths besides, with answers behind them: minutes a round for 8192, an hour for 32768
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TOKENS")]
    long: Vec<Long>,
    /// Number of rounds for each side
    #[arg(long, value_name = "N", default_value_t = ROUNDS)]
    rounds: NonZeroU32,
    /// Print one JSON object for each line instead of the table, or write them to FILE beside it
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
}

/// An engine that HEG is measured beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// OpenVINO GenAI
    Genai,
    /// llama.cpp
    Llama,
    /// No other: HEG alone
    None,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let precision = args.precision.precision()?;
    let subject = Subject::find(args.model.as_deref())?;
    let exported = args.genai_model.as_deref();
    let genai = match args.peers.contains(&Peer::Genai) {
        true => Some(genai::prepare(&subject, exported, precision)?),
        false => None,
    };
    let llama = match args.peers.contains(&Peer::Llama) {
        true => Some(llama::prepare(&subject, precision)?),
        false => None,
    };
    let ours = Ours {
        isa: args.isa,
        ..ours::prepare(&subject, precision)?
    };
    let mut report =
        Report::new(&subject.name, precision, args.rounds, args.isa).of_run(Provenance::now()?);
    // What was measured before is shown first.
    let mut failed = None;
    for round in 1..=args.rounds.get() {
        let announce = |side| note(format!("round {round} of {}: {side}", args.rounds));
        announce("HEG");
        measure_ours(&ours, &mut report.ours)?;
        if let Some(genai) = &genai {
            announce("GenAI");
            measure_genai(genai, &mut report.genai)?;
        }
        if let Some(llama) = &llama {
            announce("llama.cpp");
            measure_llama(llama, &mut report.llama)?;
        }
        for prompt in &args.long {
            let sides = Sides {
                ours: &mut report.ours,
                genai: &mut report.genai,
                llama: &mut report.llama,
            };
            let of_all = (&ours, genai.as_ref(), llama.as_ref());
            if let Err(error) = long::measure(*prompt, of_all, sides) {
                let tokens = prompt.tokens();
                note(format!(
                    "a prompt of {tokens} tokens was not measured: {error:#}"
                ));
                failed.get_or_insert(error);
            }
        }
    }
    note("accuracy of the same build and settings");
    let accuracy = quality::beside_speed(precision);
    report.accuracy = accuracy.as_ref().and_then(quality::Report::judged_kl);
    show(args, &report, accuracy)?;
    failed.map_or(Ok(()), Err)
}

/// Prints the report, or writes it.
fn show(args: &Args, report: &Report, accuracy: Option<quality::Report>) -> Result<()> {
    match &args.json {
        Some(None) => {
            print!("{}", report.json_lines()?);
            return Ok(());
        }
        Some(Some(file)) => output::write(file, &report.json_lines()?)?,
        None => {}
    }
    print!("{}", report.table());
    if let Some(accuracy) = accuracy {
        print!("{ABOUT_ACCURACY}{}", accuracy.table());
    }
    Ok(())
}

/// The samples of all sides.
struct Sides<'s> {
    ours: &'s mut Samples,
    genai: &'s mut Samples,
    llama: &'s mut Samples,
}

const ABOUT_ACCURACY: &str = "
Accuracy at these settings, on a real model (random weights have no text to be right about):
";

/// The work of all sides. Chosen: prompts of two chunks and of eight, an answer long enough to average over, and the
/// batch of eight that is usually quoted for servers.
const PREFILL_TOKENS: [u32; 2] = [512, 2048];
const DECODE_TOKENS: u32 = 32;
const BATCH: u32 = 8;
const START_PROMPT_TOKENS: u32 = 32;

fn measure_ours(ours: &Ours, samples: &mut Samples) -> Result<()> {
    let measured = ours.bench()?;
    samples.add_all(&measured, &report::BENCH_KEYS)?;
    samples.add_all(&measured, &[report::LOAD_KEY])?;
    samples.add_found(&measured, report::DECODE_LIMIT_KEY);
    let start = second(|| ours.start())?;
    samples.add("process_ms", start.first_line_ms);
    samples.add("start_ms", start.first_line_ms);
    add_anonymous(samples, start.peak);
    Ok(())
}

fn measure_genai(genai: &genai::GenAi, samples: &mut Samples) -> Result<()> {
    let measured = genai.micro()?;
    samples.add_all(&measured, &report::BENCH_KEYS)?;
    samples.add_all(&measured, &[report::LOAD_KEY])?;
    // Its attention has two implementations, and it depends on the machine which starts faster: take the better one.
    let sdpa = second(|| genai.start_with("start-sdpa"))?;
    let pa = second(|| genai.start_with("start-pa"))?;
    let better = match sdpa.start_ms <= pa.start_ms {
        true => sdpa,
        false => pa,
    };
    samples.add("process_ms", better.process_ms);
    samples.add("start_ms", better.start_ms);
    add_anonymous(samples, better.peak);
    Ok(())
}

fn measure_llama(llama: &llama::Llama, samples: &mut Samples) -> Result<()> {
    samples.add_all(&llama.bench()?, &report::BENCH_KEYS)?;
    let start = second(|| llama.start())?;
    samples.add("process_ms", start.first_line_ms);
    samples.add("start_ms", start.first_line_ms);
    add_anonymous(samples, start.peak);
    Ok(())
}

fn add_anonymous(samples: &mut Samples, peak: Option<PeakMemory>) {
    if let Some(peak) = peak {
        samples.add(report::ANONYMOUS_KEY, peak.anonymous_bytes as f64);
    }
}

/// Runs `start` twice, and returns the result of the second, which finds its files in memory.
fn second<T>(start: impl Fn() -> Result<T>) -> Result<T> {
    start()?;
    start()
}

const ROUNDS: NonZeroU32 = match NonZeroU32::new(5) {
    Some(rounds) => rounds,
    None => NonZeroU32::MIN,
};

const AFTER_HELP: &str = "\
Models by name: the shapes of `cargo xtask synth-model`, such as llama-3.2-1b, with random weights; the
models of `cargo xtask fetch-model`, such as smollm2-135m-instruct. Write ./NAME for a folder of such a
name. Goals are the project's for llama-3.2-1b and smollm2-135m-instruct; other models have none.

The first time, this makes a Python environment in <target folder>/peers with pinned packages
(about 3 GB to download, 6 GB on disk, mostly PyTorch, which exports the model), builds llama.cpp from
the source that llama-cpp-python comes with (a C++ compiler is needed; ten minutes on two cores), writes
random weights of llama-3.2-1b's shape (2.5 GB), exports them with 8-bit weights for GenAI (1.2 GB) and
llama.cpp (1.3 GB) and compiles the same folder for HEG. A fetched model is compiled from its GGUF file,
which llama-quantize brings to Q8_0. Later runs start measuring at once.

Disk for a model of N parameters: 2 N bytes for its random weights, 2 N for HEG's store and bundle, and N for
each of the others: 48 GB for llama-3.1-8b, 32 GB with --peers none.

--isa holds HEG alone to older instructions; the others go on with all that the machine has.

HEG_PEERS_VENV=DIR uses a Python environment that has the packages, and downloads nothing for GenAI.

Accuracy stands beside speed: SmolLM2 at the same settings on both sides, as `cargo xtask quality
--models smollm2 --default-only` measures it (another 93 MB to download, once).

Each side is started twice, and the second start counts. The start of GenAI is counted from after
Python's start and imports, which favours it; a line of its own gives all as whole processes.

JSON: an object a line with name, heg, genai, llama (medians; the name says the unit), ratio (HEG to the
better), limit (a rate that memory allows, where it was measured), accuracy (KL of HEG's default on
SmolLM2: of prefill rows for prefill, else of decode rows), model, goals and the run's day, commit and machine. What
was not measured is null. `cargo xtask performance` makes a page of such files.

Examples:
  cargo xtask bench-peers
  cargo xtask bench-peers --model smollm2-135m-instruct --json smollm2.jsonl
  cargo xtask bench-peers --peers llama --rounds 3
  cargo xtask bench-peers --long 8192 --rounds 1
  cargo xtask bench-peers --peers none --isa avx2
  cargo xtask bench-peers --peers genai --weights w4a16 --group 128
  HEG_PEERS_VENV=~/venv cargo xtask bench-peers --model m1b --genai-model ov1b";
