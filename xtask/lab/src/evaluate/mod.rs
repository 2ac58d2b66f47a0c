//! `cargo xtask evaluate`: the evaluation of Agent.xpu (v2, section 6) in virtual time.
//!
//! Policies × rates × models run in parallel (`grid`); what came of them is written as one folder: every
//! figure of every run (`record`), tables (`tables`), our figures beside the paper's (`paper`), and pictures
//! (`figures`). Nothing here knows how a scheduler or the simulator works.

mod ablation;
mod chart;
mod figures;
mod gantt;
mod grid;
mod paper;
mod record;
mod sd_npu;
mod tables;

use crate::model_sheet;
use anyhow::{Context, Result};
use clap::ValueEnum;
use grid::{Case, Grid};
use heg_sched::Class;
use heg_sim::{ModelSheet, Platform, chrome_trace};
use heg_spec::{Policy, Soc, Source, shipped};
use heg_workload::{Spacing, Workload, benchmarks};
use record::Record;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;
use xtask::fail::Fail;
use xtask::workspace::root;

/// Arguments of `cargo xtask evaluate`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Whose evaluation; that of sd.npu has its own machines, models and workloads, and takes no other option but --out
    #[arg(long, value_enum, default_value = "agent-xpu")]
    paper: Paper,
    /// The machine: a shipped SoC file's name, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "core-ultra-5-125h")]
    soc: String,
    /// Models: shipped model sheets, sheets as files, or bundles with annotations
    #[arg(long, value_name = "NAME|FILE|BUNDLE", default_values = ["llama-3.2-3b", "llama-3.1-8b"], num_args = 1..)]
    model: Vec<String>,
    /// A folder of request files (*.jsonl) [default: the small sample that ships]
    #[arg(long, value_name = "DIR")]
    workloads: Option<PathBuf>,
    /// Folder to write to [default: target/evaluation, for sd.npu target/evaluation-sd-npu]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Policies: shipped policy files' names, or files; the first is compared with the others
    #[arg(long, value_name = "NAME|FILE", default_values = DEFAULT_POLICIES, num_args = 1..)]
    policies: Vec<String>,
    /// Traces for each pair of rates
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Seed of the first trace
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    first_seed: u64,
    /// One user: a reactive request comes when the last answer was there and was read, as in the paper's first
    /// version; the rate says how long reading takes
    #[arg(long)]
    after_answer: bool,
    /// Length of the trace, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=240))]
    minutes: u64,
    /// Tokens of a full prefill segment: the chunk of the NPU's kernels
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    chunk: u32,
    /// Turns of a session follow each other's answers and share their KV cache; otherwise each turn is a
    /// request by itself, as in the paper
    #[arg(long)]
    flows: bool,
    /// Also write a run as a Perfetto trace; REACTIVE+PROACTIVE are requests a minute, e.g.
    /// agent-xpu:llama-3.2-3b:3+6
    #[arg(long, value_name = "POLICY:MODEL:REACTIVE+PROACTIVE")]
    trace: Vec<String>,
    /// Leave the ablations out
    #[arg(long)]
    no_ablation: bool,
}

const DEFAULT_POLICIES: [&str; 4] = [
    "agent-xpu",
    "igpu-continuous-batching",
    "serial-npu-igpu",
    "cpu-continuous-batching",
];

const AFTER_HELP: &str = "\
Writes into DIR:
  summary.json   every figure of every run: one record per SoC, model, policy, rates, workload and seed
  runs.csv       the same as a table
  report.md      our figures beside the paper's, and what each mechanism is worth
  *.svg          the counterparts of the paper's figures 6, 10, 11, 12 and 13
  *.trace.json   runs to look at in https://ui.perfetto.dev (with --trace)

For sd.npu: summary.json has `lines` of `name`, `paper`, `ours`, `reached`, `origin` (simulated, recorded or planned) and
`note`; report.md has the tables.";

/// A paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Paper {
    /// Scheduling on NPU and iGPU (v2, section 6)
    AgentXpu,
    /// Drafted decoding (section 4)
    SdNpu,
}

/// The cases to evaluate.
pub(crate) struct Subject {
    pub(crate) platforms: Vec<Platform>,
    pub(crate) policies: Vec<Policy>,
    /// Each with its class, the proactive ones first.
    pub(crate) benchmarks: Vec<(Class, Workload)>,
    pub(crate) minutes: u64,
    /// When reactive requests come.
    pub(crate) spacing: Spacing,
    /// A trace for each pair of rates.
    pub(crate) seeds: Range<u64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let named = match args.paper {
        Paper::AgentXpu => "evaluation",
        Paper::SdNpu => "evaluation-sd-npu",
    };
    let default = || root().join("target").join(named);
    let out = args.out.clone().unwrap_or_else(default);
    if args.paper == Paper::SdNpu {
        return sd_npu::run(&out);
    }
    let subject = subject(args)?;
    fs::create_dir_all(&out).with_context(|| unwritable(&out))?;
    let ablations = match args.no_ablation {
        true => Vec::new(),
        false => ablation::cases(&subject),
    };
    let grid = Grid::of(&subject, ablations);
    let records = grid.run(&subject)?;
    write_all(&subject, &records, &out)?;
    for wanted in &args.trace {
        write_trace(&subject, wanted, &out)?;
    }
    print!("{}", paper::report(&subject, &records));
    println!(
        "{} runs in {:.0} s; wrote {}",
        records.len(),
        begin.elapsed().as_secs_f64(),
        out.display()
    );
    Ok(())
}

fn subject(args: &Args) -> Result<Subject> {
    let soc = soc(&args.soc)?;
    let platform = |name: &String| -> Result<Platform> {
        let sheet = sheet(name)?;
        Platform::new(&soc, &sheet, args.chunk)
            .with_context(|| Fail::input(format!("cannot put `{name}` on `{}`", soc.name)))
    };
    let workloads = match &args.workloads {
        Some(dir) => Workload::read_folder(dir).context(Fail::input("cannot use the workloads"))?,
        None => vec![Workload::sample()],
    };
    let sessions = |workload: Workload| match args.flows {
        true => workload,
        false => workload.without_sessions(),
    };
    Ok(Subject {
        platforms: args.model.iter().map(platform).collect::<Result<_>>()?,
        policies: args
            .policies
            .iter()
            .map(|name| policy(name))
            .collect::<Result<_>>()?,
        benchmarks: benchmarks(workloads.into_iter().map(sessions).collect()),
        minutes: args.minutes,
        spacing: match args.after_answer {
            true => Spacing::AfterAnswer,
            false => Spacing::Poisson,
        },
        seeds: args.first_seed..args.first_seed + args.seeds,
    })
}

/// A shipped file by its name, or the text of a file by its path.
fn named<T>(
    kind: &str,
    name: &str,
    shipped: impl Fn(&str) -> Result<T, heg_spec::SpecError>,
    parse: impl Fn(Source<'_>) -> Result<T, heg_spec::SpecError>,
) -> Result<T> {
    let refuse = || Fail::input(format!("cannot use {kind} `{name}`"));
    if !name.ends_with(".ron") {
        return shipped(name).with_context(refuse);
    }
    let text = fs::read_to_string(name).with_context(refuse)?;
    parse(Source {
        file: name,
        text: &text,
    })
    .with_context(refuse)
}

fn soc(name: &str) -> Result<Soc> {
    named("SoC", name, shipped::soc, Soc::parse)
}

fn policy(name: &str) -> Result<Policy> {
    named("policy", name, shipped::policy, Policy::parse)
}

fn sheet(name: &str) -> Result<ModelSheet> {
    let refuse = || Fail::input(format!("cannot use model `{name}`"));
    if name.ends_with(".heg") {
        return model_sheet::of_bundle(Path::new(name));
    }
    if !name.ends_with(".ron") {
        return ModelSheet::shipped(name).with_context(refuse);
    }
    let text = fs::read_to_string(name).with_context(refuse)?;
    ModelSheet::parse(&text).with_context(refuse)
}

fn write_all(subject: &Subject, records: &[Record], out: &Path) -> Result<()> {
    let summary = serde_json::to_string_pretty(records)?;
    let report = paper::report(subject, records) + "\n" + &tables::markdown(subject, records);
    let mut files = vec![
        ("summary.json".to_owned(), summary + "\n"),
        ("runs.csv".to_owned(), tables::csv(records)?),
        ("report.md".to_owned(), report),
    ];
    files.extend(figures::all(subject, records)?);
    files.extend(gantt::figure(subject)?);
    for (name, text) in files {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| unwritable(&path))?;
    }
    Ok(())
}

/// Writes the run that `POLICY:MODEL:REACTIVE+PROACTIVE` names.
fn write_trace(subject: &Subject, wanted: &str, out: &Path) -> Result<()> {
    let refuse = || {
        let fail = Fail::input(format!("cannot trace `{wanted}`"));
        fail.hint("expected POLICY:MODEL:REACTIVE+PROACTIVE, e.g. agent-xpu:llama-3.2-3b:3+6, of an evaluated policy and model")
    };
    let case = Case::named(subject, wanted).ok_or_else(refuse)?;
    let run = case.serve(subject, true).with_context(refuse)?;
    let safe = wanted.replace([':', '+', '/'], "-");
    let path = out.join(format!("{safe}.trace.json"));
    fs::write(&path, serde_json::to_string(&chrome_trace(&run))?).with_context(|| unwritable(&path))
}

fn unwritable(path: &Path) -> Fail {
    Fail::environment(format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests;
