//! `cargo xtask check-twin`: a run of the engine on real lanes, replayed in the simulator, and how far both are apart.
//!
//! Costs are fitted to every other launch of the run, and so is the machine's speed in each tenth of a second, since clocks
//! and neighbours change it by a fifth from one request to the next. Requests are compared one by one, and so is the share of
//! the time in which each lane is busy. The command fails where they differ too much.

mod costs;
mod record;

use crate::output;
use crate::precision::Precision;
use crate::statistics::median;
use crate::subject::Subject;
use crate::table::Markdown;
use anyhow::{Context, Result};
use costs::FittedCosts;
use heg_sched::{Class, Finish, Lane, MachineFacts, MachineLanes, Micros, for_machine};
use heg_sim::{Contender, Machine, RequestRecord, Run, SpeedDrift, simulate};
use heg_spec::{DeviceClass, Policy, Seeded, shipped};
use heg_workload::{Arrival, RunTrace, Trace, TraceRequest, TracedRequest};
use serde::Serialize;
use std::fs::File;
use std::path::PathBuf;
use xtask::fail::Fail;

/// Arguments of `cargo xtask check-twin`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A trace that `heg serve --trace` wrote while nothing was drafted, in place of a run of this command
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
    /// A model by name, or a Hugging Face folder
    #[arg(long, value_name = "MODEL", default_value = "agent-30m")]
    model: String,
    /// A compiled bundle, in place of a model
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    bundle: Option<PathBuf>,
    /// The machine: a shipped SoC file's name
    #[arg(long, value_name = "NAME", default_value = "host-cpu")]
    soc: String,
    /// The policy: a shipped policy's name [default: the one for these lanes]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Reactive and proactive requests a minute
    #[arg(long, value_name = "REACTIVE+PROACTIVE", default_value = "60+120", value_parser = rates)]
    rates: (f64, f64),
    /// Length of the run
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(4..=600))]
    seconds: u64,
    /// Seed of the requests
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Largest mean error of a request's latency
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    latency_error_max: f64,
    /// Largest difference of a lane's occupancy
    #[arg(long, value_name = "POINTS", default_value_t = 5.0)]
    occupancy_error_max: f64,
    /// Also keep the run in FILE, as `heg serve --trace` would, with three requests before it that warm it up
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    keep: Option<PathBuf>,
    /// Also write all figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Runs requests of random prompts on this machine's lanes, then the same in the simulator with the same scheduler, at the
times at which they arrived. What each kernel takes is fitted to every other launch, by tokens and context, and how fast the
machine is to the same launches of each tenth of a second; what a replay at its mean speed misses is printed beside.

Examples:
  cargo xtask check-twin --soc host-roles
  cargo xtask check-twin --seed 1 --keep run.json; cargo xtask check-twin run.json
  heg serve model.heg --trace run.json --speculate off; cargo xtask check-twin run.json";

fn rates(text: &str) -> Result<(f64, f64), String> {
    let rate = |text: &str| {
        let rate = text.parse().ok();
        rate.filter(|rate: &f64| (0.0..=6000.0).contains(rate))
    };
    let both = text.split_once('+');
    let both = both.and_then(|(reactive, proactive)| Some((rate(reactive)?, rate(proactive)?)));
    both.ok_or_else(|| format!("expected REACTIVE+PROACTIVE requests a minute, found `{text}`"))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let recorded = match &args.trace {
        Some(path) => read(path)?,
        None => record(args)?,
    };
    let policy = |lanes: MachineLanes| {
        let name = args.policy.as_deref().unwrap_or(lanes.policy());
        shipped::policy(name).context(Fail::input("cannot use the policy"))
    };
    let twin = Twin::of(&recorded, policy)?;
    if args.trace.is_none() {
        println!("{}, load {}", args.soc, load());
    }
    print!("{}", twin.table());
    if let Some(file) = &args.json {
        output::write(file, &output::pretty(&twin)?)?;
    }
    let far = twin.too_far(args.latency_error_max, args.occupancy_error_max);
    if far.is_empty() {
        return Ok(());
    }
    let fail = Fail::check(far.join("; "));
    Err(fail
        .hint("a machine that others use changes its speed while it runs: try again on an idle one")
        .into())
}

/// Number of programs that wait for a core on average, over the last minute; `None` where the system does not say.
fn load() -> String {
    let found = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = found.split_whitespace().next().unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{first} on {cores} cores")
}

fn read(path: &std::path::Path) -> Result<RunTrace> {
    let refuse = || Fail::input(format!("cannot use trace `{}`", path.display()));
    let trace = RunTrace::read(File::open(path).with_context(refuse)?).with_context(refuse)?;
    match trace.left_out() {
        0 => Ok(trace),
        events => Err(refuse())
            .with_context(|| format!("expected all events, found that {events} were left out")),
    }
}

fn record(args: &Args) -> Result<RunTrace> {
    let bundle = match &args.bundle {
        Some(bundle) => bundle.clone(),
        None => Subject::find(Some(&args.model))?.bundle(Precision::EIGHT_BITS)?,
    };
    let soc = shipped::soc(&args.soc).context(Fail::input("cannot use the SoC"))?;
    let lanes = MachineLanes::of(|class| soc.devices.iter().any(|it| it.class == class));
    let policy = args.policy.as_deref().unwrap_or(lanes.policy());
    let policy = shipped::policy(policy).context(Fail::input("cannot use the policy"))?;
    record::record(&bundle, &soc, policy, &drawn(args), args.keep.as_deref())
}

/// Longest prompt and longest answer. Chosen: a small model has room for both.
const LONGEST: (usize, usize) = (384, 48);

/// Requests at Poisson times.
fn drawn(args: &Args) -> Trace {
    let mut requests = Vec::new();
    for (class, per_minute) in [
        (Class::Reactive, args.rates.0),
        (Class::Proactive, args.rates.1),
    ] {
        let mut random = Seeded::new(args.seed << 1 | u64::from(class == Class::Reactive));
        let mut at_secs = 0.0;
        loop {
            at_secs -= (1.0 - random.unit()).ln() * 60.0 / per_minute;
            // Without any requests the first never comes.
            if !at_secs.is_finite() || at_secs > args.seconds as f64 {
                break;
            }
            let at = Arrival::At(Micros::from_f64(at_secs * 1e6));
            let (prompt, answer) = (
                16 + random.below(LONGEST.0 - 16),
                4 + random.below(LONGEST.1 - 4),
            );
            requests.push(TraceRequest::lone(class, at, prompt as u32, answer as u32));
        }
    }
    let arrival = |request: &TraceRequest| match request.arrival {
        Arrival::At(at) => at,
        Arrival::After { not_before, .. } => not_before,
    };
    requests.sort_by_key(arrival);
    Trace { requests }
}

/// A run beside its replay.
#[derive(Debug, Serialize)]
struct Twin {
    requests: Vec<Pair>,
    lanes: Vec<LanePair>,
    /// Mean latency of these, in s: recorded, simulated.
    mean_secs: [f64; 2],
    /// Mean of the errors of latency, and of the time to the first token, in percent of the recorded.
    latency_error_percent: f64,
    latency_error_percent_median: f64,
    ttft_error_percent: f64,
    /// Mean of the errors of latency where the machine is taken to be as fast all the time, in percent.
    mean_speed_error_percent: f64,
}

/// A request's times from its arrival, in s: recorded, simulated.
#[derive(Debug, Serialize)]
struct Pair {
    id: u64,
    prompt_tokens: u32,
    answer_tokens: u32,
    reactive: bool,
    ttft_secs: [f64; 2],
    latency_secs: [f64; 2],
}

/// Share of the run in which a lane was busy, in percent: recorded, simulated.
#[derive(Debug, Serialize)]
struct LanePair {
    lane: &'static str,
    occupancy_percent: [f64; 2],
}

impl Twin {
    fn of(
        recorded: &RunTrace,
        policy: impl FnOnce(MachineLanes) -> Result<Policy>,
    ) -> Result<Self> {
        let requests: Vec<&TracedRequest> = recorded.requests().collect();
        let trace = replayed(&requests)?;
        let first = requests.iter().map(|it| it.arrived).min();
        let last = requests.iter().map(|it| it.arrived).max();
        let (Some(first), Some(last)) = (first, last) else {
            return Err(Fail::check("expected requests in the run, found none").into());
        };
        let costs = FittedCosts::of(recorded);
        let lanes = MachineLanes::of(|class: DeviceClass| costs.has(Lane::from(class)));
        let facts = MachineFacts {
            lanes,
            flash: false,
            kernels_hang: false,
        };
        let policy = for_machine(policy(lanes)?, &facts);
        let policy = policy.map_err(|_| Fail::input("the policy is for another device"))?;
        let contender = Contender::from(policy);
        let replay = |drift| {
            let machine = Machine {
                drift,
                ..Machine::default()
            };
            let run = simulate(&mut contender.scheduler(&costs), &costs, &machine, &trace);
            run.with_context(|| Fail::check("the replay did not end"))
        };
        let pairs = |run: &Run| -> Vec<Pair> {
            let pairs = requests.iter().zip(&run.requests);
            pairs.filter_map(|(one, other)| pair(one, other)).collect()
        };
        let at_mean_speed = pairs(&replay(SpeedDrift::default())?);
        let run = replay(costs.drift(recorded))?;
        let usage = &run.usage;
        let busy = Lane::ALL.map(|lane| {
            let launches = recorded.launches().iter().filter(|it| it.lane == lane);
            let recorded: f64 = launches.map(|it| it.end.since(it.start).as_secs()).sum();
            let at = lane as usize;
            [recorded, usage.prefill_secs[at] + usage.decode_secs[at]]
        });
        let ended = recorded.launches().iter().map(|it| it.end).max();
        let spans = [ended.unwrap_or(last), run.ended].map(|end| end.since(first).as_secs());
        let names = ["NPU", "iGPU", "CPU"].into_iter().zip(busy);
        let lanes = names.filter(|(_, busy)| busy[0] > 0.0 || busy[1] > 0.0);
        let lanes = lanes.map(|(lane, busy)| LanePair {
            lane,
            occupancy_percent: [0, 1].map(|at| 100.0 * busy[at] / spans[at]),
        });
        let pairs = pairs(&run);
        Ok(Self::compared(pairs, &at_mean_speed, lanes.collect()))
    }

    fn compared(requests: Vec<Pair>, at_mean_speed: &[Pair], lanes: Vec<LanePair>) -> Self {
        let mean_of = |pairs: &[Pair], of: &dyn Fn(&Pair) -> f64| {
            pairs.iter().map(of).sum::<f64>() / pairs.len() as f64
        };
        let mean = |of: &dyn Fn(&Pair) -> f64| mean_of(&requests, of);
        let error = |[recorded, simulated]: [f64; 2]| 100.0 * (simulated / recorded - 1.0).abs();
        Self {
            mean_speed_error_percent: mean_of(at_mean_speed, &|it| error(it.latency_secs)),
            mean_secs: [0, 1].map(|at| mean(&|it| it.latency_secs[at])),
            latency_error_percent: mean(&|it| error(it.latency_secs)),
            latency_error_percent_median: {
                let errors: Vec<f64> = requests.iter().map(|it| error(it.latency_secs)).collect();
                median(&errors).unwrap_or(f64::NAN)
            },
            ttft_error_percent: mean(&|it| error(it.ttft_secs)),
            requests,
            lanes,
        }
    }

    fn table(&self) -> String {
        let mut table = Markdown::new(["", "recorded", "simulated", "error"]);
        let secs = self.mean_secs;
        table.row([
            format!("mean latency of {} requests", self.requests.len()),
            format!("{:.4} s", secs[0]),
            format!("{:.4} s", secs[1]),
            format!("{:+.1}%", 100.0 * (secs[1] / secs[0] - 1.0)),
        ]);
        let each = [
            ("latency, request by request", self.latency_error_percent),
            ("the same, median", self.latency_error_percent_median),
            ("first token, request by request", self.ttft_error_percent),
            (
                "latency at the machine's mean speed",
                self.mean_speed_error_percent,
            ),
        ];
        for (what, error) in each {
            let cells = [what, "", ""].map(str::to_owned);
            table.row(cells.into_iter().chain([format!("{error:.1}%")]));
        }
        for it in &self.lanes {
            let [recorded, simulated] = it.occupancy_percent;
            table.row([
                format!("{} lane busy", it.lane),
                format!("{recorded:.1}%"),
                format!("{simulated:.1}%"),
                format!("{:+.1} points", simulated - recorded),
            ]);
        }
        table.text()
    }

    /// Figures that are further apart than wanted.
    fn too_far(&self, latency_percent: f64, occupancy_points: f64) -> Vec<String> {
        let mut far = Vec::new();
        // A missing figure is too far, too.
        let error = self.latency_error_percent;
        if error.is_nan() || error > latency_percent {
            far.push(format!(
                "the mean error of latency is {error:.1}%, expected at most {latency_percent}%"
            ));
        }
        for it in &self.lanes {
            let apart = (it.occupancy_percent[0] - it.occupancy_percent[1]).abs();
            if apart.is_nan() || apart > occupancy_points {
                far.push(format!(
                    "the {} lane's occupancy is off by {apart:.1} points, expected at most {occupancy_points}",
                    it.lane
                ));
            }
        }
        far
    }
}

/// The requests of a run, at the times at which they arrived.
fn replayed(requests: &[&TracedRequest]) -> Result<Trace> {
    let replayed = |request: &&TracedRequest| {
        let complete = request.ended.is_some_and(|(_, it)| it == Finish::Complete);
        if !complete {
            let id = request.id.0;
            let fail = format!("expected that request {id} was answered, found that it was not");
            return Err(Fail::input(fail));
        }
        Ok(TraceRequest::lone(
            request.class,
            Arrival::At(request.arrived),
            request.prompt_tokens,
            request.output_tokens,
        ))
    };
    let requests: Result<_, Fail> = requests.iter().map(replayed).collect();
    Ok(Trace {
        requests: requests?,
    })
}

fn pair(recorded: &TracedRequest, simulated: &RequestRecord) -> Option<Pair> {
    let since = |from: Micros, to: Micros| to.since(from).as_secs();
    let (ended, _) = recorded.ended?;
    let arrived = simulated.arrived?;
    Some(Pair {
        id: recorded.id.0,
        prompt_tokens: recorded.prompt_tokens,
        answer_tokens: recorded.output_tokens,
        reactive: recorded.class == Class::Reactive,
        ttft_secs: [
            since(recorded.arrived, recorded.first_token?),
            since(arrived, simulated.first_token?),
        ],
        latency_secs: [
            since(recorded.arrived, ended),
            since(arrived, simulated.ended?),
        ],
    })
}

#[cfg(test)]
mod tests;
