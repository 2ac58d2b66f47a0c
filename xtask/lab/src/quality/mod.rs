//! `cargo xtask quality`: the distance between a compiled model and the same model in f32, for each form on each
//! device, and for OpenVINO GenAI's 8-bit or 4-bit weights: with the same weights, positions and reference, in the same
//! run. Speed only counts together with this.

mod measure;
mod model;
mod passages;
mod report;
mod rows;

use crate::precision::{Bits, Precision, PrecisionArgs};
use anyhow::{Context, Result};
use heg_spec::GroupColumns;
pub(crate) use model::Model;
use passages::Scored;
pub(crate) use report::Report;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use xtask::fail::Fail;
use xtask::fetch::Consent;
use xtask::workspace::note;

/// Arguments of `cargo xtask quality`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Models to measure
    #[arg(
        long,
        value_enum,
        value_name = "MODEL",
        value_delimiter = ',',
        default_values_t = [Model::Smollm2, Model::Gemma3, Model::Agent30m]
    )]
    models: Vec<Model>,
    /// About as many positions of each model are scored [default: 48 of each prompt's answer, 960 of held-out answers]
    #[arg(long, value_name = "N")]
    positions: Option<NonZeroUsize>,
    /// Prompts that models answer instead of the built-in 20: a JSON object with its `text` a line
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    #[command(flatten)]
    precision: PrecisionArgs,
    /// Measure these weights on host-cpu alone beside GenAI
    #[arg(long)]
    default_only: bool,
    /// Accept the terms of a model that has some, instead of being asked
    #[arg(long)]
    accept_terms: bool,
    /// Print one JSON object instead of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let consent = match args.accept_terms {
        true => Consent::Given,
        false => Consent::Ask,
    };
    let extent = match args.default_only {
        true => Extent::Default,
        false => Extent::All,
    };
    let precision = args.precision.precision()?;
    let read = |path: &PathBuf| {
        fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))
    };
    let scored = Scored {
        positions: args.positions.map(NonZeroUsize::get),
        prompts: args.prompts.as_ref().map(read).transpose()?,
    };
    let mut reports = Vec::new();
    for model in &args.models {
        match measure::model(*model, consent, &scored, (extent, precision))? {
            Some(report) => reports.push(report),
            None => note(format!("{} is not on this machine: left out", model.name())),
        }
    }
    if reports.is_empty() {
        return Err(Fail::input("none of the models is on this machine").into());
    }
    match args.json {
        true => println!("{}", report::json(&reports)),
        false => print!("{}", report::tables(&reports)),
    }
    judge(&reports)
}

/// Fails if the goal is missed or could not be checked.
fn judge(reports: &[Report]) -> Result<()> {
    let of = |met: Option<bool>| -> String {
        let found = reports.iter().filter(|report| report.is_met() == met);
        let names: Vec<&str> = found.map(|report| report.model.as_str()).collect();
        names.join(", ")
    };
    let (missed, unknown) = (of(Some(false)), of(None));
    if !missed.is_empty() {
        let message = format!("less accurate than GenAI's on host-cpu: {missed}");
        return Err(Fail::check(message).into());
    }
    if !unknown.is_empty() {
        let message = format!("not measured beside GenAI: {unknown}");
        return Err(Fail::environment(message).into());
    }
    Ok(())
}

/// Measures SmolLM2 at a precision on the default device and with GenAI, for other commands to show next to speed. Its
/// file is in groups of 32, so its 4-bit weights have these groups. Returns `None`, with a notice, if it cannot be
/// measured here.
pub(crate) fn beside_speed(precision: Precision) -> Option<Report> {
    let weights = match precision.weights {
        Bits::Eight => Bits::Eight,
        Bits::Four(_) => Bits::Four(GroupColumns::SMALLEST),
    };
    let precision = Precision {
        weights,
        ..precision
    };
    let (scored, chosen) = (Scored::default(), (Extent::Default, precision));
    let measured = measure::model(Model::Smollm2, Consent::Ask, &scored, chosen);
    measured.unwrap_or_else(|error| {
        note(format!("accuracy was not measured: {error:#}"));
        None
    })
}

/// The extent of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Every form on every device.
    All,
    /// Only the weights that the goal is about, on `host-cpu`.
    Default,
}

const AFTER_HELP: &str = "\
The reference is the model in f32 on host-cpu-f32. Its distributions at every position are kept in a temporary file
(four bytes for each token of the vocabulary and position: 1 GB for Gemma 3). What is scored: the f32 model's own greedy
answers of up to 48 tokens to 20 prompts, and held-out answers of agent-30m. Prefill and decode rows are measured apart.

GenAI has no interface for distributions, so the model that it would load is run as its LLMPipeline runs it: no
properties, which means keys and values in 8 bits, activations in groups of 32, and the precision that the plugin
chooses for this machine.

Goal: the weights on host-cpu (w8a16 unless others are chosen) have at most GenAI's KL on every model. Exit status 1
where it is missed, 4 where GenAI's side could not be measured.

The first time, this fetches the models (93 MB; Gemma 238 MB, under terms of Google's) and makes the Python environment
of bench-peers; HEG_PEERS_VENV=DIR uses one that has the packages.

Examples:
  cargo xtask quality
  cargo xtask quality --models smollm2 --default-only
  cargo xtask quality --models agent-30m --weights w4a16 --group 128
  cargo xtask quality --models smollm2,agent-30m --positions 200 --json
  cargo xtask quality --models smollm2 --default-only --prompts asked.jsonl";
