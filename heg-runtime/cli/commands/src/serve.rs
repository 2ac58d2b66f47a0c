//! `heg serve`: serves bundles over OpenAI's and Anthropic's APIs, until the process is told to end.

mod memory;

use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use heg_artifacts::plain::escape;
use heg_confine::WorkerProgram;
use heg_runtime::Loaded;
use heg_runtime::engine::{DeviceTurns, Engine, EngineOptions, ResidentBudget};
use heg_runtime::exec::Loader;
use heg_runtime::{read_policy, verified};
use heg_sched::Observer;
use heg_sched::{Action, Event, Lane, Micros};
use heg_server::{
    Models, Prefixes, ServedModel, Server, ServerLimits, ServerOptions, Timeline, Token, Tokens,
    shutdown_signal,
};
use heg_spec::Policy;
use heg_state::StateFolder;
use heg_workload::TraceFile;

use crate::TEXT_WORKER;
use crate::bake::Choice;
use crate::failure::input;
use memory::KvPart;

use crate::options::{Machine, Speculate, print_descents};
use crate::state::Keep;

/// Arguments of `heg serve`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    /// Further bundles to serve beside the first. A request names its model; one that names none gets the first. A person's request to one goes before background work of all, and memory for KV caches is shared out equally. A bundle that cannot be served is reported, and the others are
    #[arg(value_name = "BUNDLES")]
    others: Vec<PathBuf>,
    /// Another name for a model, which requests may use as well (may be given several times)
    #[arg(long, value_name = "NAME=MODEL", value_parser = alias)]
    alias: Vec<Alias>,
    /// Port on 127.0.0.1; 0 takes a free one [default: 8080, unless --socket is given]
    #[arg(long, value_name = "P")]
    port: Option<u16>,
    /// Listen on a Unix socket that only this user may connect to or, on Windows, on a named pipe as \\.\pipe\heg
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How requests share the devices: a shipped policy or a .ron file [default: agent-xpu or agent-xpu-one-device, and cpu-priority-batching for vectors and scores]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Memory for KV caches, in MiB; models share it in proportion to what their longest contexts take [default: what the policy says, at most a quarter of the machine's memory]
    #[arg(long, value_name = "N")]
    kv_mib: Option<NonZeroU32>,
    /// Memory for bundles, in MiB: those that no request needs are released where others need room, and read again when they are asked for [default: no bound; the system decides]
    #[arg(long, value_name = "N")]
    resident_mib: Option<NonZeroU32>,
    /// A model that is never released, by name (may be given several times)
    #[arg(long, value_name = "MODEL", requires = "resident_mib")]
    pin: Vec<String>,
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

/// Another name of a model.
#[derive(Debug, Clone)]
struct Alias {
    name: String,
    model: String,
}

fn alias(text: &str) -> Result<Alias, String> {
    let both = text.split_once('=');
    let both = both.filter(|(name, model)| !name.is_empty() && !model.is_empty());
    let (name, model) = both.ok_or("expected NAME=MODEL, as in `small=smollm2-135m-instruct`")?;
    Ok(Alias {
        name: name.to_owned(),
        model: model.to_owned(),
    })
}

/// Runs the command until the process is told to end.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.check()?;
    let server = Server::bind(arguments.options()?)?;
    let hosting = Hosting {
        arguments,
        turns: match arguments.others.as_slice() {
            [] => DeviceTurns::default(),
            [..] => DeviceTurns::shared(),
        },
        resident: arguments.resident(),
        state: arguments.state.folder()?.map(Arc::new),
    };
    let others = arguments.others.iter();
    let others = others.map(|other| arguments.machine.of(other));
    let machines = std::iter::once(arguments.machine.of(&arguments.machine.bundle)).chain(others);
    let mut opened = Vec::new();
    for machine in machines {
        match machine.open() {
            Ok(loaded) => opened.push((machine, loaded)),
            Err(error) => arguments.pass_over(&machine, error)?,
        }
    }
    let bundles = || opened.iter().map(|(_, loaded)| loaded);
    arguments.check_residents(bundles())?;
    let mut models: Option<Models> = None;
    for ((machine, loaded), kv_part) in opened.iter().zip(KvPart::of_each(bundles())) {
        let model = match hosting.model(machine, loaded, kv_part) {
            Ok(model) => model,
            Err(error) => {
                arguments.pass_over(machine, error)?;
                continue;
            }
        };
        match &mut models {
            Some(models) => models.add(distinct(model, models, &machine.bundle))?,
            None => models = Some(model.into()),
        }
    }
    let mut models = models.ok_or_else(|| input("none of the bundles can be served"))?;
    for Alias { name, model } in &arguments.alias {
        models.alias(name.clone(), model)?;
    }
    let names = models.names().join(", ");
    for address in server.addresses() {
        // Scripts wait for this line; a missing reader is no error.
        let _ = writeln!(std::io::stdout(), "serving {names} on {address}");
    }
    // A second signal ends the grace period.
    server.run_until(models, shutdown_signal(), shutdown_signal())?;
    // Unless that was done: a bundle that had just been written when kernels became ready is remembered here.
    for (machine, loaded) in &opened {
        machine.remember(loaded)?;
    }
    Ok(())
}

/// Returns a model under its file's name, if another one has its own.
fn distinct(model: ServedModel, models: &Models, bundle: &Path) -> ServedModel {
    let stem = bundle.file_stem().map(|stem| stem.to_string_lossy());
    match stem {
        Some(stem) if models.has(model.name()) => {
            let stem = stem.into_owned();
            eprintln!(
                "note: `{}` is served already, so this one is `{}`",
                escape(model.name()),
                escape(&stem)
            );
            model.named(stem)
        }
        _ => model,
    }
}

/// The setup that all models of a server share.
struct Hosting<'a> {
    arguments: &'a Arguments,
    turns: DeviceTurns,
    resident: ResidentBudget,
    state: Option<Arc<StateFolder>>,
}

impl Hosting<'_> {
    /// Starts a bundle's engine.
    fn model(
        &self,
        machine: &Machine,
        loaded: &Loaded,
        kv_part: KvPart,
    ) -> anyhow::Result<ServedModel> {
        let arguments = self.arguments;
        let timeline = Timeline::default();
        let loader = machine.loader(loaded)?;
        let options = EngineOptions {
            exec: machine.executor_options(&loader),
            flash: verified::cache_folder()?.map(|cache| cache.path().to_owned()),
            state: self.state.clone(),
            speculation: arguments.speculate.into(),
            baked: arguments.baked.states(),
            turns: self.turns.clone(),
            resident: self.resident.for_bundle(arguments.stay(loaded)),
            observers: arguments.observers(&timeline)?,
            ..EngineOptions::default()
        };
        let policy = arguments.policy(&loader, kv_part)?;
        let engine = Engine::start(loader, policy, options)?;
        if let Some(why) = engine.not_kept() {
            eprintln!("note: keeps nothing of prompts: {}", escape(why));
        }
        print_descents(engine.passed_states());
        let worker = WorkerProgram::this(TEXT_WORKER);
        Ok(ServedModel::new(loaded, engine, timeline, worker)?)
    }
}

impl Arguments {
    /// Reports a bundle that cannot be served; the others are.
    ///
    /// # Errors
    ///
    /// The bundle's, if there is no other.
    fn pass_over(&self, machine: &Machine, error: anyhow::Error) -> anyhow::Result<()> {
        if self.others.is_empty() {
            return Err(error);
        }
        let path = escape(&machine.bundle.to_string_lossy()).to_string();
        eprintln!(
            "heg: `{path}` is not served: {}",
            escape(&format!("{error:#}"))
        );
        Ok(())
    }

    /// Refuses what is for one bundle alone, and memory that is too little for all.
    fn check(&self) -> anyhow::Result<()> {
        if self.others.is_empty() {
            return Ok(());
        }
        if self.trace.is_some() {
            return Err(input(
                "--trace writes what one bundle does: expected one bundle",
            ));
        }
        self.check_kv()
    }

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

    fn policy(&self, loader: &Loader, kv_part: KvPart) -> anyhow::Result<Policy> {
        let mut policy = read_policy(match &self.policy {
            Some(asked) => asked,
            None if loader.bundle().manifest().vectors.is_some() => {
                loader.lanes().policy_of_texts()
            }
            None => loader.lanes().policy(),
        })?;
        let limits = &mut policy.limits;
        limits.kv_mib = self.kv_mib(limits.kv_mib);
        limits.flash_mib = self.flash_mib.unwrap_or(limits.flash_mib);
        kv_part.bound(limits);
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

const PORT: u16 = 8080;

const EXAMPLES: &str = "Examples:
  heg serve model.heg
  heg serve chat.heg digest.heg --alias small=smollm2-135m-instruct    several models on one machine
  heg serve model.heg --socket ~/heg.sock --token-file clients.txt";
