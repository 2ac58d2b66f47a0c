//! `heg explain`: explains from a run's trace why a request was slow.

use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use heg_sched::{Class, Micros, RequestId};
use heg_workload::{RunTrace, TracedRequest, explain};

use crate::failure::input;

/// Arguments of `heg explain`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A trace that `heg serve --trace` wrote, or `cargo xtask evaluate --trace` of a simulated run
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// The request: its number in the trace, or `slowest`, which waited longest for its first token [default: list the slowest]
    #[arg(value_name = "REQUEST")]
    request: Option<Wanted>,
    /// Print one JSON object
    #[arg(long, requires = "request")]
    json: bool,
}

const EXAMPLES: &str = "It goes back from the last token, and from the first one, through what ran of the request and what it waited for,
and through the time of requests that it waited for. So all of its time has a cause: kernels of its own, the prompt or
a kernel of another request, a rule of the policy, memory, a lane that hung or was lost, a kernel that was compiled.
The largest comes first.

Examples:
  heg serve model.heg --trace run.json
  heg explain run.json                 # the slowest requests of the run
  heg explain run.json slowest
  heg explain run.json 7 --json | jq .first_token.causes";

/// The request to explain.
#[derive(Clone, Copy)]
enum Wanted {
    Number(RequestId),
    Slowest,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "slowest" {
            return Ok(Self::Slowest);
        }
        let number = text.parse().map(RequestId).map(Self::Number);
        number.map_err(|_| "expected the number of a request, or `slowest`".to_owned())
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let path = arguments.trace.display();
    let file = File::open(&arguments.trace)
        .map_err(|error| input(format!("cannot open trace `{path}`: {error}")))?;
    let trace = RunTrace::read(file).map_err(|error| {
        let chain = anyhow::Error::from(error);
        input(format!("cannot use trace `{path}`: {chain:#}"))
    })?;
    match trace.left_out() {
        0 => {}
        events => eprintln!("the trace lacks {events} events, for which its disk was too slow"),
    }
    let request = match arguments.request {
        Some(Wanted::Number(request)) => request,
        Some(Wanted::Slowest) => trace
            .slowest(Micros(0))
            .ok_or_else(|| input(format!("no request of `{path}` has a token")))?,
        None => return list(&trace),
    };
    let explanation = explain(&trace, request).map_err(|error| input(error.to_string()))?;
    if arguments.json {
        println!("{}", explanation.to_json());
    } else {
        println!(
            "{explanation}\n\n{}",
            explanation.picture(COLUMNS).trim_end()
        );
        print_mechanisms(&trace);
    }
    Ok(())
}

/// Width of a diagram's rows in columns, which leaves room for words beside them.
const COLUMNS: usize = 40;

/// Prints the requests that waited longest for their first token, with the main cause of each.
fn list(trace: &RunTrace) -> anyhow::Result<()> {
    let waited = |request: &TracedRequest| Some(request.first_token?.since(request.arrived));
    let mut slowest: Vec<_> = trace
        .requests()
        .filter_map(|request| Some((waited(request)?, request)))
        .collect();
    slowest.sort_by_key(|(waited, request)| (std::cmp::Reverse(*waited), request.id));
    println!("request  class      prompt  first token  mostly");
    for (waited, request) in slowest.iter().take(LISTED_MAX) {
        let explanation = explain(trace, request.id)?;
        let main = explanation.first_token.main();
        let class = match request.class {
            Class::Reactive => "reactive",
            Class::Proactive => "proactive",
        };
        println!(
            "{:>7}  {class:<9}  {:>6}  {:>8.1} ms  {}",
            request.id.0,
            request.prompt_tokens,
            waited.0 as f64 / 1e3,
            main.map_or("", |share| share.text.as_str())
        );
    }
    print_mechanisms(trace);
    Ok(())
}

/// Prints how often each mechanism of the policy acted in the run, if its trace says so.
fn print_mechanisms(trace: &RunTrace) {
    let used = trace.mechanisms().to_string();
    if !used.is_empty() {
        println!("\n{}", used.trim_end());
    }
}

/// Maximum number of listed requests.
const LISTED_MAX: usize = 10;
