//! `heg serve`: serves a bundle over OpenAI's and Anthropic's APIs, until the process is told to end.

use std::io::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use heg_artifacts::plain::escape;
use heg_confine::WorkerProgram;
use heg_runtime::engine::{Engine, EngineOptions};
use heg_runtime::exec::Loader;
use heg_runtime::{read_policy, verified};
use heg_sched::Observer;
use heg_sched::{Action, Event, Lane, Micros};
use heg_server::{
    Prefixes, ServedModel, Server, ServerLimits, ServerOptions, Timeline, Token, Tokens,
    shutdown_signal,
};
use heg_spec::Policy;
use heg_workload::TraceFile;

use crate::TEXT_WORKER;
use crate::bake::Choice;
use crate::failure::input;
use crate::options::{Machine, Speculate, print_descents};
use crate::state::Keep;

/// Arguments of `heg serve`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    /// Port on 127.0.0.1; 0 takes a free one [default: 8080, unless --socket is given]
    #[arg(long, value_name = "P")]
    port: Option<u16>,
    /// Listen on a Unix socket that only this user may connect to
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How requests share the devices: a shipped policy or a .ron file [default: agent-xpu, or agent-xpu-one-device]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Memory for KV caches, in MiB [default: what the policy says, at most a quarter of the machine's memory]
    #[arg(long, value_name = "N")]
    kv_mib: Option<NonZeroU32>,
    /// Flash for KV caches of idle flows that have to make room, in MiB; 0 drops them instead [default: as the policy says]
    #[arg(long, value_name = "N")]
    flash_mib: Option<u32>,
    #[command(flatten)]
    state: Keep,
    #[command(flatten)]
    baked: Choice,
    /// Bearer token that clients must present; better given as HEG_TOKEN, which no process list shows
    #[arg(long, value_name = "T")]
    token: Option<String>,
    /// File of bearer tokens, with lines `TOKEN`, `NAME TOKEN` or `NAME TOKEN operator`: each name is a separate client, whose flows, keys and prompts the others cannot see; an operator sees the load of all
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let a prompt reuse the cached prefix of another client's prompt: faster, but response times reveal what others have asked
    #[arg(long)]
    share_prefixes: bool,
    /// Draft tokens that prompts and earlier answers suggest, and verify several at once; answers are the same
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Speculate::Chain)]
    speculate: Speculate,
    /// Write a trace of what the devices do and requests wait for: for Perfetto (ui.perfetto.dev), and `heg explain`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Maximum number of requests of each class that wait or run; more are refused with 429, except from clients that have few
    #[arg(long, value_name = "N", default_value_t = ServerLimits::default().requests)]
    queue: usize,
    /// Maximum number of answer tokens where the request sets no limit
    #[arg(long, value_name = "N", default_value_t = ServerLimits::default().answer_tokens)]
    max_tokens: u32,
}

/// Runs the command until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let server = Server::bind(arguments.options()?)?;
    let loaded = arguments.machine.open()?;
    let timeline = Timeline::default();
    let loader = arguments.machine.loader(&loaded)?;
    let options = EngineOptions {
        exec: arguments.machine.executor_options(&loader),
        flash: verified::cache_folder()?.map(|cache| cache.path().to_owned()),
        state: arguments.state.folder()?.map(Arc::new),
        speculation: arguments.speculate.into(),
        baked: arguments.baked.states(),
        observers: arguments.observers(&timeline)?,
        ..EngineOptions::default()
    };
    let policy = arguments.policy(&loader)?;
    let engine = Engine::start(loader, policy, options)?;
    if let Some(why) = engine.not_kept() {
        eprintln!("note: keeps nothing of prompts: {}", escape(why));
    }
    print_descents(engine.passed_states());
    let served = ServedModel::new(&loaded, engine, timeline, WorkerProgram::this(TEXT_WORKER))?;
    for address in server.addresses() {
        // Scripts wait for this line; a missing reader is no error.
        let _ = writeln!(std::io::stdout(), "serving {} on {address}", served.name());
    }
    // A second signal ends the grace period.
    server.run_until(served, shutdown_signal(), shutdown_signal())?;
    // Unless that was done: a bundle that had just been written when kernels became ready is remembered here.
    arguments.machine.remember(&loaded)?;
    Ok(())
}

impl Arguments {
    fn observers(&self, timeline: &Timeline) -> anyhow::Result<Vec<Box<dyn Observer>>> {
        let mut observers: Vec<Box<dyn Observer>> =
            vec![Box::new(timeline.clone()), Box::new(Losses)];
        if let Some(path) = &self.trace {
            let unwritable = || format!("cannot write `{}`", path.display());
            let file = heg_files::create_own(path).with_context(unwritable)?;
            let trace = TraceFile::live(file).with_context(unwritable)?;
            observers.push(Box::new(trace));
        }
        Ok(observers)
    }

    fn policy(&self, loader: &Loader) -> anyhow::Result<Policy> {
        let mut policy = read_policy(match &self.policy {
            Some(asked) => asked,
            None => loader.lanes().policy(),
        })?;
        let limits = &mut policy.limits;
        limits.kv_mib = match self.kv_mib {
            Some(asked) => asked.get(),
            None => limits
                .kv_mib
                .min(memory_mib().map_or(u32::MAX, |all| all / 4)),
        };
        limits.flash_mib = self.flash_mib.unwrap_or(limits.flash_mib);
        Ok(policy)
    }

    fn tokens(&self) -> anyhow::Result<Tokens> {
        let mut tokens = match &self.token_file {
            Some(path) => Tokens::read(path)?,
            None => Tokens::default(),
        };
        let given = self.token.clone();
        if let Some(text) = given.or_else(|| std::env::var("HEG_TOKEN").ok()) {
            let token = Token::new(text).ok_or_else(|| {
                input("the token is empty or has spaces, expected printable ASCII letters")
            })?;
            // A token that is also in the file belongs to the same client.
            let _ = tokens.add(token, None);
        }
        Ok(tokens)
    }

    fn options(&self) -> anyhow::Result<ServerOptions> {
        let port = match (self.port, &self.socket) {
            (None, None) => Some(PORT),
            (port, _) => port,
        };
        Ok(ServerOptions {
            port,
            socket: self.socket.clone(),
            tokens: self.tokens()?,
            prefixes: match self.share_prefixes {
                true => Prefixes::Shared,
                false => Prefixes::Own,
            },
            limits: ServerLimits {
                requests: self.queue,
                answer_tokens: self.max_tokens,
                ..ServerLimits::default()
            },
            cache: verified::cache_folder()?,
        })
    }
}

/// Reports lost lanes to the user: requests go on without them, or fail.
struct Losses;

impl Observer for Losses {
    fn stepped(&mut self, _: Micros, _: &Event, _: &[Action]) {}

    fn lost(&mut self, lane: Lane, why: &str) {
        // A missing reader is no error.
        let _ = writeln!(std::io::stderr(), "heg: lane {lane:?} is lost: {why}");
    }
}

/// Returns the memory of the machine, in MiB; `None` if the system does not say.
fn memory_mib() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    u32::try_from(kibibytes / 1024).ok()
}

const PORT: u16 = 8080;
