//! `heg bench-serve`: replays a trace against a server and reports the waiting times of people and of
//! background work.
//!
//! Open loop: requests are sent at their time, whatever is still outstanding, and all times count from then.

mod client;
mod endpoint;
mod report;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use heg_sched::{Class, Micros};
use heg_workload::{Outcome, Prompts, ReplayRequest, TraceSpec, Workload};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, sleep, sleep_until};

use crate::failure::{InputError, input};
use endpoint::{Dialect, Endpoint, PriorityField};

/// Arguments of `heg bench-serve`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The server, with its base path if that is not /v1
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The server's Unix socket, or on Windows its named pipe, in place of the URL's host and port
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Dialect of the completions API that it speaks
    #[arg(long, value_enum, default_value_t = Dialect::Openai)]
    dialect: Dialect,
    /// Whether requests name their priority class
    #[arg(long, value_enum, default_value_t = PriorityField::On)]
    priority_field: PriorityField,
    /// The model that requests name, for servers that want one
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    source: Source,
    /// Send only the reactive requests of the trace, one after the other, to measure their latency alone
    #[arg(long)]
    alone: bool,
    /// Time limit for the server to become ready
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    ready_secs: u64,
    /// Time limit for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    patience_secs: u64,
    /// Print one JSON object: figures, and what became of each request
    #[arg(long)]
    json: bool,
}

/// Source of the requests.
#[derive(Args)]
struct Source {
    /// Reactive requests a minute
    #[arg(long, value_name = "RATE", default_value_t = 2.0)]
    reactive_rpm: f64,
    /// Proactive requests a minute
    #[arg(long, value_name = "RATE", default_value_t = 4.0)]
    proactive_rpm: f64,
    /// Time during which requests arrive
    #[arg(long, value_name = "MINUTES", default_value_t = 5.0)]
    minutes: f64,
    /// Same seed, same trace
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A folder of request files (*.jsonl) [default: the small sample that ships]
    #[arg(long, value_name = "DIR")]
    workloads: Option<PathBuf>,
    /// Kind of prompts
    #[arg(long, value_enum, default_value_t = PromptKind::Ids)]
    prompts: PromptKind,
    /// Exclusive upper bound of random token ids
    #[arg(long, value_name = "ID", default_value_t = 15_000, value_parser = clap::value_parser!(u32).range(11..))]
    ids_end: u32,
    /// Maximum length of prompt and answer together; longer requests are not drawn
    #[arg(long, value_name = "TOKENS", default_value_t = TraceSpec::default().context_tokens)]
    context: u32,
    /// Replay this file in place of a drawn trace: a line is {"at_ms", "class", "prompt", "prompt_tokens",
    /// "output_tokens"}
    #[arg(long, value_name = "FILE", conflicts_with = "gap")]
    trace: Option<PathBuf>,
    /// A long reactive answer, and a proactive prompt of 4 000 tokens in the midst of it, in place of a trace
    #[arg(long)]
    gap: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PromptKind {
    /// Random token ids, as many as the prompt has tokens
    Ids,
    /// The request files' text
    Text,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let endpoint = Endpoint::new(
        &arguments.url,
        arguments.socket.clone(),
        arguments.dialect,
        arguments.priority_field,
        arguments.model.clone(),
    )?;
    let mut requests = arguments.source.requests()?;
    if arguments.alone {
        requests.retain(|request| request.class == Class::Reactive);
    }
    if requests.is_empty() {
        return Err(input("the trace has no requests"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (outcomes, engine) = runtime.block_on(async {
        let warm_up = ReplayRequest::warm_up(arguments.source.ids_end);
        let ready = Duration::from_secs(arguments.ready_secs);
        wait_ready(&endpoint, &warm_up, ready).await?;
        let replay = Replay {
            endpoint: Arc::new(endpoint),
            patience: Duration::from_secs(arguments.patience_secs),
            progress: progress(requests.len()),
        };
        let outcomes = match arguments.alone {
            true => replay.one_by_one(requests).await?,
            false => replay.at_their_times(requests).await?,
        };
        replay.progress.finish_and_clear();
        let engine = client::engine_figures(&replay.endpoint).await;
        anyhow::Ok((outcomes, engine))
    })?;
    let mut out = std::io::stdout().lock();
    match arguments.json {
        true => writeln!(out, "{}", report::json(&outcomes, engine.as_ref()))?,
        false => {
            write!(out, "{}", report::table(&outcomes))?;
            if let Some(engine) = engine {
                write!(out, "\n{engine}")?;
            }
        }
    }
    Ok(())
}

impl Source {
    fn requests(&self) -> anyhow::Result<Vec<ReplayRequest>> {
        if let Some(path) = &self.trace {
            let name = path.display().to_string();
            let unusable = || format!("cannot read the trace `{name}`");
            let text = std::fs::read_to_string(path).with_context(unusable)?;
            return ReplayRequest::parse_lines(&name, &text).with_context(|| InputError {
                message: unusable(),
            });
        }
        if self.gap {
            return Ok(ReplayRequest::gap(self.seed, self.ids_end));
        }
        let workloads = match &self.workloads {
            Some(folder) => Workload::read_folder(folder).with_context(|| InputError {
                message: "cannot use the workloads".to_owned(),
            })?,
            None => vec![Workload::sample()],
        };
        let spec = TraceSpec {
            span: Micros::from_f64(self.minutes * 60e6),
            reactive_per_minute: self.reactive_rpm,
            proactive_per_minute: self.proactive_rpm,
            context_tokens: self.context,
            seed: self.seed,
            ..TraceSpec::default()
        };
        let prompts = match self.prompts {
            PromptKind::Ids => Prompts::Ids { end: self.ids_end },
            PromptKind::Text => Prompts::Text,
        };
        Ok(ReplayRequest::draw(&spec, &workloads, prompts))
    }
}

/// Sends a short request, which is not counted, until it is answered: the server then runs, has its model,
/// and has done its one-time work.
async fn wait_ready(
    endpoint: &Endpoint,
    warm_up: &ReplayRequest,
    patience: Duration,
) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let begin = Instant::now();
        let left = (start + patience).saturating_duration_since(begin);
        let outcome = client::complete(endpoint, warm_up, start, begin, left).await;
        let Some(failure) = outcome.failure else {
            return Ok(());
        };
        if start.elapsed() + READY_POLL > patience {
            let message = format!("the server was not ready after {} s", patience.as_secs());
            return Err(anyhow::anyhow!(failure).context(message));
        }
        sleep(READY_POLL).await;
    }
}

/// Time between two attempts. Chosen: short beside a start.
const READY_POLL: Duration = Duration::from_millis(200);

/// Requests on their way to a server.
struct Replay {
    endpoint: Arc<Endpoint>,
    patience: Duration,
    progress: ProgressBar,
}

impl Replay {
    async fn at_their_times(&self, requests: Vec<ReplayRequest>) -> anyhow::Result<Vec<Outcome>> {
        let start = Instant::now();
        let mut running = Vec::new();
        for request in requests {
            let (endpoint, progress) = (self.endpoint.clone(), self.progress.clone());
            let patience = self.patience;
            running.push(tokio::spawn(async move {
                let due = start + Duration::from_millis(request.at_ms);
                sleep_until(due).await;
                let outcome = client::complete(&endpoint, &request, start, due, patience).await;
                progress.inc(1);
                outcome
            }));
        }
        let mut outcomes = Vec::new();
        for request in running {
            outcomes.push(request.await?);
        }
        Ok(outcomes)
    }

    async fn one_by_one(&self, requests: Vec<ReplayRequest>) -> anyhow::Result<Vec<Outcome>> {
        let start = Instant::now();
        let mut outcomes = Vec::new();
        for request in requests {
            let due = Instant::now();
            let done = client::complete(&self.endpoint, &request, start, due, self.patience);
            outcomes.push(done.await);
            self.progress.inc(1);
        }
        Ok(outcomes)
    }
}

/// Returns a progress bar on standard error, if that is a terminal.
fn progress(requests: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} answered, {elapsed}");
    let bar = ProgressBar::new(requests as u64);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}
