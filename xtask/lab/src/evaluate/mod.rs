//! `cargo xtask evaluate`: the evaluation of Agent.xpu (v2, section 6) in virtual time.
//!
//! Policies × rates × models run in parallel (`grid`), and so do policies without one mechanism (`ablation`),
//! additional `baselines` and alternative assumptions (`assumption`). The results are written to one folder: every
//! figure of every run (`record`), tables (`tables`), our figures beside the paper's (`paper`, `sustained`, `report`),
//! and pictures (`figures`). Nothing here depends on how a scheduler or the simulator works.

mod ablation;
mod assumption;
mod baselines;
mod batching;
mod bounds;
mod chart;
mod cited;
mod figures;
mod gantt;
mod grid;
mod heterollm;
mod lengths;
mod line;
mod paper;
mod record;
mod report;
mod runs;
mod sd_npu;
mod sustained;
mod tables;

use crate::output::{self, unwritable};
use crate::{model_sheet, shared};
use ablation::MechanismLine;
use anyhow::{Context, Result};
use clap::ValueEnum;
use grid::{Case, Grid};
use heg_sched::Class;
use heg_sim::{Contender, ModelSheet, Platform};
use heg_spec::{Policy, Soc, Source, shipped};
use heg_workload::{Spacing, TraceFile, Workload, benchmarks};
use line::PaperLine;
use record::Record;
use serde::Serialize;
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
    /// Whose evaluation; those of sd.npu and HeteroLLM have their own machines and models, and take no other option but --out
    #[arg(long, value_enum, default_value = "agent-xpu")]
    paper: Paper,
    /// The machine: a shipped SoC file's name, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "core-ultra-5-125h")]
    soc: String,
    /// Models: shipped model sheets, sheets as files, or bundles with annotations
    #[arg(long, value_name = "NAME|FILE|BUNDLE", default_values = ["llama-3.2-3b", "llama-3.1-8b"], num_args = 1..)]
    model: Vec<String>,
    /// A folder of request files (*.jsonl) [default: those of ../shared beside the checkout; without them the small sample
    /// that ships]
    #[arg(long, value_name = "DIR")]
    workloads: Option<PathBuf>,
    /// Folder to write to [default: target/evaluation, with -sd-npu or -heterollm behind it for those papers]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Policies: names of shipped policies and rivals, or files; the first is compared with the others
    #[arg(long, value_name = "NAME|FILE", default_values = DEFAULT_POLICIES, num_args = 1..)]
    policies: Vec<String>,
    /// Traces for each pair of rates
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100))]
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
    /// Leave out proactive requests alone, and so how many of them policies sustain: half of the runs
    #[arg(long)]
    mixed_only: bool,
    /// Leave out ablations, further baselines and other assumptions, and do not ask whether every mechanism acts
    #[arg(long)]
    no_ablation: bool,
}

const DEFAULT_POLICIES: [&str; 5] = [
    "agent-xpu",
    "igpu-continuous-batching",
    "serial-npu-igpu",
    "cpu-continuous-batching",
    "agent-xpu-v1",
];

const AFTER_HELP: &str = "\
Writes into DIR:
  summary.json   `lines`: our figures beside the paper's, with bounds; `mechanisms`: how often each acted, and what it is
                 worth; `runs`: every figure of every run, by SoC, model, policy, rates, workload and seed
  runs.csv       the runs as a table
  report.md      our figures beside the paper's, and what each mechanism is worth
  *.svg          the counterparts of the paper's figures 6, 10, 11, 12 and 13
  *.trace.json   runs to look at in https://ui.perfetto.dev (with --trace)

For sd.npu and HeteroLLM: summary.json has `lines` of `name`, `paper`, `ours`, `reached`, `origin` (simulated, recorded or
planned) and `note`; report.md has the tables.";

/// A paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Paper {
    /// Scheduling on NPU and iGPU (v2, section 6)
    AgentXpu,
    /// Drafted decoding (section 4)
    SdNpu,
    /// Products cut between two devices (section 5)
    Heterollm,
}

/// The cases to evaluate.
pub(crate) struct Subject {
    pub(crate) platforms: Vec<Platform>,
    pub(crate) policies: Vec<Contender>,
    /// The paper's figures.
    pub(crate) says: paper::Figures,
    /// A sentence about the source of the requests.
    pub(crate) requests: String,
    /// The benchmarks with their classes, the proactive ones first.
    pub(crate) benchmarks: Vec<(Class, Workload)>,
    pub(crate) minutes: u64,
    /// Arrival process of the reactive requests.
    pub(crate) spacing: Spacing,
    /// Seeds, with one trace for each pair of rates.
    pub(crate) seeds: Range<u64>,
    /// Whether proactive requests are served alone, too.
    pub(crate) proactive_alone: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let named = match args.paper {
        Paper::AgentXpu => "evaluation",
        Paper::SdNpu => "evaluation-sd-npu",
        Paper::Heterollm => "evaluation-heterollm",
    };
    let default = || root().join("target").join(named);
    let out = args.out.clone().unwrap_or_else(default);
    match args.paper {
        Paper::AgentXpu => {}
        Paper::SdNpu => return sd_npu::run(&out),
        Paper::Heterollm => return heterollm::run(&out),
    }
    let workloads = args.workloads.clone();
    let workloads = workloads.or_else(|| shared::folder("workloads"));
    let subject = subject(args, workloads.as_deref())?;
    fs::create_dir_all(&out).with_context(|| unwritable(&out))?;
    let mut others = Vec::new();
    if !args.no_ablation {
        others = ablation::cases(&subject);
        others.extend(grid::compared(&subject));
    }
    let grid = Grid::of(&subject, others);
    let records = grid.run(&subject)?;
    let summary = Summary {
        paper: "Agent.xpu",
        lines: paper::lines(&subject, &records),
        mechanisms: ablation::mechanisms(&subject, &records),
        runs: &records,
    };
    write_all(&subject, &summary, &out)?;
    for wanted in &args.trace {
        write_trace(&subject, wanted, &out)?;
    }
    print!("{}", report::comparison(&subject, &summary.lines));
    print!("{}", report::mechanisms(&summary.mechanisms));
    println!(
        "{} runs in {:.0} s; wrote {}",
        records.len(),
        begin.elapsed().as_secs_f64(),
        out.display()
    );
    let passed = bounds::passed(&records);
    if !passed.is_empty() {
        let fail = format!("runs that passed a lower bound: {}", passed.join("; "));
        return Err(Fail::check(fail).into());
    }
    let mut idle: Vec<String> = report::idle(&summary.mechanisms);
    idle.extend(ablation::idle_of_others(&subject, &records));
    if !idle.is_empty() && !args.no_ablation {
        let fail = Fail::check(format!("mechanisms that never acted: {}", idle.join(", ")));
        return Err(fail
            .hint("turn them off in the policy, or try traces in which they have work")
            .into());
    }
    Ok(())
}

/// The content of `summary.json`.
#[derive(Serialize)]
struct Summary<'a> {
    paper: &'static str,
    lines: Vec<PaperLine>,
    mechanisms: Vec<MechanismLine>,
    runs: &'a [Record],
}

impl Subject {
    /// The baseline of the paper's first comparison.
    fn igpu_baseline(&self) -> Option<&Contender> {
        self.policies
            .iter()
            .find(|policy| policy.name() == paper::IGPU)
    }
}

fn subject(args: &Args, workloads: Option<&Path>) -> Result<Subject> {
    let soc = soc(&args.soc)?;
    let platform = |name: &String| -> Result<Platform> {
        let sheet = sheet(name)?;
        Platform::new(&soc, &sheet, args.chunk)
            .with_context(|| Fail::input(format!("cannot put `{name}` on `{}`", soc.name)))
    };
    let workloads = match workloads {
        Some(dir) => Workload::read_folder(dir).context(Fail::input("cannot use the workloads"))?,
        None => vec![Workload::sample()],
    };
    let requests = match workloads.as_slice() {
        [one] if one.name == Workload::sample().name => SAMPLE.to_owned(),
        several => {
            let names: Vec<&str> = several.iter().map(|one| one.name.as_str()).collect();
            format!("Requests are those of {}.", names.join(", "))
        }
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
        says: paper::figures()?,
        requests,
        benchmarks: benchmarks(workloads.into_iter().map(sessions).collect()),
        minutes: args.minutes,
        spacing: match args.after_answer {
            true => Spacing::AfterAnswer,
            false => Spacing::Poisson,
        },
        seeds: args.first_seed..args.first_seed + args.seeds,
        proactive_alone: !args.mixed_only,
    })
}

const SAMPLE: &str = "Requests are those of the small sample that ships: the data sets that the project measures with are \
     not on this machine, and figures differ from theirs (name a folder with --workloads).";

/// Reads a shipped file by its name, or a file by its path.
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

fn policy(name: &str) -> Result<Contender> {
    let parse = |source: Source<'_>| Policy::parse(source).map(Contender::from);
    named("policy", name, Contender::named, parse)
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

fn write_all(subject: &Subject, summary: &Summary<'_>, out: &Path) -> Result<()> {
    let records = summary.runs;
    let report = [
        report::comparison(subject, &summary.lines),
        report::mechanisms(&summary.mechanisms),
        tables::markdown(subject, records),
    ];
    let report = report.concat();
    let mut files = vec![
        ("summary.json".to_owned(), output::pretty(summary)?),
        ("report.md".to_owned(), report),
        ("runs.csv".to_owned(), tables::csv(records)?),
    ];
    files.extend(figures::all(subject, records)?);
    files.extend(gantt::figure(subject)?);
    let files = files.iter().map(|(name, text)| (&**name, &**text));
    output::write_all(out, files)
}

/// Writes the run named `POLICY:MODEL:REACTIVE+PROACTIVE`.
fn write_trace(subject: &Subject, wanted: &str, out: &Path) -> Result<()> {
    let refuse = || {
        let fail = Fail::input(format!("cannot trace `{wanted}`"));
        fail.hint("expected POLICY:MODEL:REACTIVE+PROACTIVE, e.g. agent-xpu:llama-3.2-3b:3+6, of an evaluated policy and model")
    };
    let case = Case::named(subject, wanted).ok_or_else(refuse)?;
    let safe = wanted.replace([':', '+', '/'], "-");
    let path = out.join(format!("{safe}.trace.json"));
    let file = TraceFile::create(&path).with_context(|| unwritable(&path))?;
    case.observe(subject, file).with_context(refuse)
}

#[cfg(test)]
mod tests;
