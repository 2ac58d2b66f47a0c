//! `cargo xtask bench-drafts`: the number of tokens of known answers that each drafting method gets right, and its
//! cost.
//!
//! No model runs. An answer is replayed token by token, as if a model verified the drafts and gave that answer: a
//! verification yields the drafted tokens that equal the answer's next ones, and one more. Methods with a history add
//! each answer to it for the later ones in the file.

mod ablation;
mod data;
mod likely;
mod methods;
mod replay;
mod report;

use crate::output;
use anyhow::Result;
use data::{DataSet, Tokenizers};
use methods::methods;
use report::{Measured, Report};
use std::path::{Path, PathBuf};
use xtask::workspace::{self, note};

/// Arguments of `cargo xtask bench-drafts`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Answers to draft for, as JSON lines; may be given more than once [default: tiny-agent's, and those of ../shared where it is]
    #[arg(long = "data", value_name = "FILE")]
    data: Vec<PathBuf>,
    /// The tokenizer of files that have none beside them: a bundle, or a tokenizer.json [default: SmolLM2's bundle]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Print what each mechanism of our drafts is worth
    #[arg(long)]
    ablate: bool,
    /// The bundle of a model whose prompts the files have: with --ablate, drafts from what it finds likely in them, too
    #[arg(long, value_name = "BUNDLE", requires = "ablate")]
    model: Option<PathBuf>,
    /// Also write all figures to FILE, and how often drafts were accepted how far
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write to FILE how often drafts were accepted how far: the same on any machine
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let files = match args.data.is_empty() {
        true => data::default_files(),
        false => args.data.clone(),
    };
    let default = || workspace::output().compiled("smollm2-135m-instruct");
    let mut tokenizers = Tokenizers::new(args.tokenizer.clone().unwrap_or_else(default));
    let mut report = Report::new(tokenizers.default_name());
    for file in &files {
        let mut data = DataSet::read(file, &mut tokenizers)?;
        if data.exchanges.is_empty() {
            note(format!("{} has no answers", data.name));
            continue;
        }
        let measure = |mut method: Box<dyn replay::Method>| Measured {
            replay: replay::replay(&data, method.as_mut()),
            method: method.name(),
            bytes_per_history_token: method.bytes_per_history_token(),
        };
        let measured: Vec<Measured> = methods().into_iter().map(measure).collect();
        print!("{}", report::table(&data.name, &measured));
        report.add(&data.name, &measured);
        if args.ablate {
            ablate(&mut data, args.model.as_deref(), &mut report)?;
        }
    }
    let outputs = [
        (&args.json, report.json()?),
        (&args.records, report.records_json()?),
    ];
    for (file, text) in outputs {
        if let Some(file) = file {
            output::write(file, &text)?;
        }
    }
    Ok(())
}

/// Replays a data set with each mechanism on and off.
fn ablate(data: &mut DataSet, model: Option<&Path>, report: &mut Report) -> Result<()> {
    if let Some(bundle) = model {
        likely::find(bundle, data)?;
    }
    let variants = ablation::variants(model.is_some()).into_iter();
    let replays = variants.map(|mut method| {
        let replay = replay::replay(data, method.as_mut());
        (method.name(), replay)
    });
    let replays: Vec<(String, replay::Replay)> = replays.collect();
    print!("{}", ablation::table(&data.name, &replays));
    // Simulations sample from the records with calibration; the main report has those without.
    let calibrated = replays
        .iter()
        .filter(|(name, _)| name.ends_with("calibrated"));
    for (name, replay) in calibrated {
        report.add_records(&data.name, name, replay);
    }
    Ok(())
}

const AFTER_HELP: &str = "\
A line of FILE is an object with `prompt`, and `answer` or `reference`; lines without an answer are left out. `task`
divides a file into parts. Text becomes tokens by the tokenizer.json beside FILE, else by --tokenizer; an answer ends with
the end token of a generation_config.json beside FILE.

Without --data: the evaluation questions of tiny-agent, and where there is ../shared beside the checkout, those of
agent-30m and the reference answers of the workloads.

Ways to draft: prompt look-up (the longest of at most 3 tokens that occurs earlier; 10 tokens), a suffix automaton over
the context, alone and with one over earlier answers (16 tokens), and ours with a history, as a chain of 16 and as a tree
of 32.

--ablate: chains of 16 without each mechanism, drafts as long as they pay by times of steps measured with SmolLM2, and with
--model calibrated ones, as if the prompt had been read again before the answer began. Reuse needs a model that runs:
`cargo xtask bench-speculation --ablate`.

JSON: `figures` of each data set and method, and `records`, which the simulator draws from: for each data set, each part
of it and each method [drafted, expected, accepted, count] of all verifications. Those that the simulator ships with are
heg-runtime/sim/src/drafts/recorded.json, which --records wrote.

Examples:
  cargo xtask bench-drafts
  cargo xtask bench-drafts --data answers.jsonl --tokenizer model.heg --json figures.json
  cargo xtask bench-drafts --data tiny-agent/eval.jsonl --ablate --model tiny-agent.heg";
