//! `cargo xtask bench-serve`: mixed traces against HEG's server, OpenVINO GenAI and llama-server, one after the other
//! on the same machine, model and requests. The results of each run are kept in the output folder: a stopped command
//! resumes where it was.

mod report;
mod results;
mod systems;

use crate::provenance::Provenance;
use crate::subject::Subject;
use anyhow::{Context, Result};
use heg_sched::{Class, Micros};
use heg_workload::{Figures, Prompts, ReplayRequest, TraceSpec, Workload};
use report::{GapReport, LoadReport, REACTIVE_ONLY, Report};
use results::{Results, Run};
use std::path::PathBuf;
use systems::{Pace, System, Systems};
use xtask::fail::Fail;
use xtask::workspace::{note, target_dir};

/// Arguments of `cargo xtask bench-serve`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A model by name, or a Hugging Face folder [default: llama-3.2-1b, synthesised]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The same model, exported for GenAI with 8-bit weights already [default: exported with optimum-cli]
    #[arg(long, value_name = "DIR")]
    genai_model: Option<PathBuf>,
    /// Systems to measure, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = System::USUAL)]
    systems: Vec<System>,
    /// Loads, as shares of what GenAI sustains
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_values_t = [0.5, 0.8, 1.2])]
    loads: Vec<f64>,
    /// Requests a minute that GenAI sustains [default: measured first]
    #[arg(long, value_name = "RPM")]
    sustained: Option<f64>,
    /// Length of the trace
    #[arg(long, value_name = "MINUTES", default_value_t = 5.0)]
    minutes: f64,
    /// Seed of the traces
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A folder of request files (*.jsonl) [default: the small sample that ships]
    #[arg(long, value_name = "DIR")]
    workloads: Option<PathBuf>,
    /// Prompts: random token ids, or the request files' own text, which GenAI's side does not take
    #[arg(long, value_enum, default_value_t = PromptKind::Ids)]
    prompts: PromptKind,
    /// Only the gap between tokens of a reactive answer while a proactive prompt of 4 000 tokens comes
    #[arg(long)]
    gap: bool,
    /// Folder for traces and results [default: target/bench-serve]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of the tables
    #[arg(long)]
    json: bool,
}

/// The prompts of `--prompts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PromptKind {
    Ids,
    Text,
}

const AFTER_HELP: &str = "\
What GenAI sustains: all requests of a trace of 2 reactive and 4 proactive requests a minute are there at once;
the requests a minute that it answers then. Loads keep that mix, 1 to 2.

Ratios are printed where both systems answered every request.

`heg-reactive` are the reactive requests of each trace at the same times on the same server, without the background
requests: what these cost a person is the ratio of `heg` to it.

Writes into DIR: setup.json, for each load and the gap a folder with trace.jsonl and SYSTEM.json (what became of
each request) and the server's log, the same for the reactive requests in a folder reactive-only of it, and
summary.json. Runs whose SYSTEM.json is there are not repeated: DIR holds those of one commit on one machine.

The first time, this makes Python environments and exports as bench-peers does, and builds llama-server from the
source that llama-cpp-python comes with (a C++ compiler is needed; ten minutes on two cores).

Examples:
  cargo xtask bench-serve --workloads DIR
  cargo xtask bench-serve --systems heg,genai --loads 0.8 --minutes 1 --sustained 9
  cargo xtask bench-serve --systems heg,heg-plain --loads 0.8 --model smollm2-135m-instruct --prompts text
  cargo xtask bench-serve --gap";

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.prompts == PromptKind::Text && args.systems.contains(&System::Genai) {
        let fail = Fail::input("GenAI's side of this benchmark takes token ids, not text");
        return Err(fail
            .hint("use --prompts ids, or --systems heg,heg-plain")
            .into());
    }
    let out = match &args.out {
        Some(out) => out.clone(),
        None => target_dir().join("bench-serve"),
    };
    let workloads = match &args.workloads {
        Some(dir) => Workload::read_folder(dir).context(Fail::input("cannot use the workloads"))?,
        None => vec![Workload::sample()],
    };
    let bench = Bench {
        args,
        workloads,
        results: Results::open(&out, &setup(args, &Provenance::now()?))?,
        systems: {
            let subject = Subject::find(args.model.as_deref())?;
            Systems::prepare(&subject, args.genai_model.as_deref(), &args.wanted())?
        },
    };
    let mut report = Report::default();
    if !args.gap {
        let sustained_rpm = bench.sustained_rpm()?;
        report.sustained_rpm = Some(sustained_rpm);
        for load in &args.loads {
            report.loads.push(bench.load(*load, sustained_rpm)?);
        }
    }
    report.gap = bench.gap()?;
    let json = serde_json::to_string_pretty(&report.json())?;
    bench.results.write("summary.json", &json)?;
    match args.json {
        true => println!("{json}"),
        false => print!("{}", report.table()),
    }
    Ok(())
}

/// The inputs of the results other than systems and loads: results with different ones do not fit together.
fn setup(args: &Args, run: &Provenance) -> serde_json::Value {
    serde_json::json!({
        "commit": run.commit,
        "machine": run.machine,
        "model": args.model,
        "minutes": args.minutes,
        "seed": args.seed,
        "workloads": args.workloads,
        "prompts": format!("{:?}", args.prompts),
    })
}

impl Args {
    /// The systems to prepare: GenAI is needed to measure the sustained rate.
    fn wanted(&self) -> Vec<System> {
        let mut wanted = self.systems.clone();
        if !self.gap && self.sustained.is_none() {
            wanted.push(System::Genai);
        }
        wanted
    }
}

struct Bench<'a> {
    args: &'a Args,
    workloads: Vec<Workload>,
    results: Results,
    systems: Systems,
}

/// Bound of the token ids in random prompts, whatever the vocabulary. Chosen: below the vocabularies of llama-3.2-1b
/// and larger models.
const IDS_END: u32 = 15_000;
const IDS: Prompts = Prompts::Ids { end: IDS_END };

impl Bench<'_> {
    /// Generates a trace with this many requests per minute, a third of them reactive.
    fn trace(&self, requests_per_minute: f64, prompts: Prompts) -> Result<Vec<ReplayRequest>> {
        let spec = TraceSpec {
            span: Micros::from_f64(self.args.minutes * 60e6),
            reactive_per_minute: requests_per_minute / 3.0,
            proactive_per_minute: requests_per_minute * 2.0 / 3.0,
            seed: self.args.seed,
            ..TraceSpec::default()
        };
        let trace = ReplayRequest::draw(&spec, &self.workloads, prompts);
        if trace.is_empty() {
            let message = format!("no request comes within {} minutes", self.args.minutes);
            return Err(Fail::input(message).hint("use more --minutes").into());
        }
        Ok(trace)
    }

    fn sustained_rpm(&self) -> Result<f64> {
        if let Some(rpm) = self.args.sustained {
            return Ok(rpm);
        }
        let trace = self.trace(6.0, IDS)?;
        let run = self.replay("sustained", &trace, System::Genai, Pace::AtOnce)?;
        let answered = run
            .requests
            .iter()
            .filter(|outcome| outcome.failure.is_none());
        let ends = answered.clone().map(|outcome| outcome.latency_ms);
        let minutes = ends.fold(0.0, f64::max) / 60e3;
        if minutes == 0.0 {
            return Err(Fail::check("GenAI answered nothing").into());
        }
        Ok(answered.count() as f64 / minutes)
    }

    fn load(&self, load: f64, sustained_rpm: f64) -> Result<LoadReport> {
        let prompts = match self.args.prompts {
            PromptKind::Ids => IDS,
            PromptKind::Text => Prompts::Text,
        };
        let trace = self.trace(load * sustained_rpm, prompts)?;
        let folder = format!("load-{load}");
        let mut runs = Vec::new();
        let mut engine = None;
        for system in &self.args.systems {
            if *system == System::Heg {
                runs.push(self.reactive_only(&folder, &trace)?);
            }
            let run = self.replay(&folder, &trace, *system, Pace::Open)?;
            runs.push((system.name().to_owned(), Figures::of(&run.requests)));
            engine = engine.or(run.engine);
        }
        Ok(LoadReport {
            load,
            requests_per_minute: load * sustained_rpm,
            runs,
            engine,
        })
    }

    fn gap(&self) -> Result<GapReport> {
        let trace = ReplayRequest::gap(self.args.seed, IDS_END);
        let mut gap = GapReport::default();
        for system in &self.args.systems {
            if *system == System::Heg {
                gap.runs.push(self.reactive_only("gap", &trace)?);
            }
            let run = self.replay("gap", &trace, *system, Pace::Open)?;
            let figures = Figures::of(&run.requests);
            gap.runs.push((system.name().to_owned(), figures));
            gap.engine = gap.engine.or(run.engine);
            if *system == System::Heg {
                let log = self.results.path("gap/start.log");
                gap.ready_ms = Some(self.systems.ready_ms(&log)?);
            }
        }
        Ok(gap)
    }

    /// Replays the reactive requests of a trace on our server at their times, without background work.
    fn reactive_only(&self, folder: &str, trace: &[ReplayRequest]) -> Result<(String, Figures)> {
        let reactive = trace.iter().filter(|it| it.class == Class::Reactive);
        let reactive: Vec<ReplayRequest> = reactive.cloned().collect();
        let folder = format!("{folder}/reactive-only");
        let run = self.replay(&folder, &reactive, System::Heg, Pace::Open)?;
        Ok((REACTIVE_ONLY.to_owned(), Figures::of(&run.requests)))
    }

    /// The outcome of a trace's requests, from an earlier run or measured now.
    fn replay(
        &self,
        folder: &str,
        trace: &[ReplayRequest],
        system: System,
        pace: Pace,
    ) -> Result<Run> {
        let trace = self.results.trace(folder, trace)?;
        let name = format!("{folder}/{}", system.name());
        if let Some(run) = self.results.read(&name)? {
            note(format!("{name}: measured before"));
            return Ok(run);
        }
        note(format!("{name}: measuring"));
        let log = self.results.path(&format!("{name}.log"));
        let run = self.systems.replay(system, &trace, pace, &log)?;
        self.results.keep(&name, &run)?;
        Ok(run)
    }
}
