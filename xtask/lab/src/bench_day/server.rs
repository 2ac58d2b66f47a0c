//! The servers of a day: started with all models, killed without a word, and started again on the same port.

use super::day::Day;
use super::dialect::{CHAT, DIGEST, Dialect, EMBED, RERANK};
use super::models::{HegModels, LlamaModels};
use crate::bench_attacks::tree::ProcessTree;
use crate::bench_attacks::wire::{self, Ending};
use crate::process::text;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};
use xtask::fail::Fail;
use xtask::workspace::{self, last_lines};

/// A program that serves all models.
#[derive(Debug)]
pub(super) enum Program {
    Heg(HegModels),
    LlamaServer(LlamaModels),
}

/// A running program, killed when dropped.
pub(super) struct Server {
    command: Command,
    child: Child,
    pub(super) port: u16,
    /// The path that says whether it serves.
    health: &'static str,
    log: PathBuf,
}

impl Program {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Heg(_) => Dialect::Heg,
            Self::LlamaServer(_) => Dialect::LlamaServer,
        }
    }

    /// Starts it for a day, with what it keeps and says in a folder, and waits until it answers.
    pub(super) fn start(&self, day: &Day, folder: &Path) -> Result<Server> {
        let port = free_port()?;
        let mut command = match self {
            Self::Heg(models) => heg(models, folder),
            Self::LlamaServer(models) => llama_server(models, day, folder)?,
        };
        command
            .args(["--port", &port.to_string()])
            // The router's servers can then be killed with it.
            .process_group(0);
        let log = folder.join("log");
        let child = spawn(&mut command, &log)?;
        let mut server = Server {
            command,
            child,
            port,
            health: match self {
                Self::Heg(_) => "/healthz",
                Self::LlamaServer(_) => "/health",
            },
            log,
        };
        server.wait_until_ready()?;
        Ok(server)
    }
}

fn heg(models: &HegModels, folder: &Path) -> Command {
    let mut command = workspace::heg(&models.heg);
    command.arg("serve");
    for bundle in [&models.chat, &models.digest, &models.embed, &models.rerank] {
        command.arg(&bundle.path);
    }
    let named = [
        (CHAT, &models.chat),
        (DIGEST, &models.digest),
        (EMBED, &models.embed),
        (RERANK, &models.rerank),
    ];
    for (name, bundle) in named {
        command.args(["--alias", &format!("{name}={}", bundle.name)]);
    }
    command.args(["--state-dir", &text(&folder.join("state"))]);
    command
}

/// The router, with a process for each model once it is asked for, all of them at a time.
fn llama_server(models: &LlamaModels, day: &Day, folder: &Path) -> Result<Command> {
    let threads = std::thread::available_parallelism()?;
    let agents = day.instructions.len();
    // A slot for each agent, so that nobody's conversation is lost to another one's.
    let chat = agents * (day.context() + RESERVE);
    let digests = DIGESTS_AT_ONCE * (day.digest_context() + RESERVE);
    let presets = format!(
        "version = 1\n\n[*]\nthreads = {threads}\n\n\
         [{CHAT}]\nmodel = {}\nctx-size = {chat}\nparallel = {agents}\n\n\
         [{DIGEST}]\nmodel = {}\nctx-size = {digests}\nparallel = {DIGESTS_AT_ONCE}\n\n\
         [{EMBED}]\nmodel = {}\nembeddings = true\n\n\
         [{RERANK}]\nmodel = {}\nreranking = true\n",
        models.chat.display(),
        models.digest.display(),
        models.embed.display(),
        models.rerank.display(),
    );
    let file = folder.join("presets.ini");
    fs::write(&file, presets).with_context(|| format!("cannot write `{}`", file.display()))?;
    let mut command = Command::new(&models.server);
    command.args(["--models-preset", &text(&file)]).args([
        "--models-max",
        "4",
        "--host",
        "127.0.0.1",
    ]);
    Ok(command)
}

fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    let unwritable = || Fail::environment(format!("cannot write `{}`", log.display()));
    let file = File::create(log).with_context(unwritable)?;
    command
        .stdout(file.try_clone().with_context(unwritable)?)
        .stderr(file);
    let program = command.get_program().to_string_lossy().into_owned();
    command
        .spawn()
        .with_context(|| Fail::environment(format!("cannot start `{program}`")))
}

impl Server {
    /// Kills the system as `kill -9` does, starts it again, and waits until it answers.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.kill();
        self.child = spawn(&mut self.command, &self.log)?;
        self.wait_until_ready()
    }

    pub(super) fn tree(&self) -> ProcessTree {
        ProcessTree::of(self.child.id())
    }

    pub(super) fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        format!("the server said last: {}", last_lines(&said))
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        while !self.is_answering() {
            let has_ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || begin.elapsed() > START_PATIENCE {
                return Err(Fail::check(self.last_words()).into());
            }
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn is_answering(&self) -> bool {
        let request = wire::get(self.health, "");
        let ending = wire::exchange(self.port, &request, HEALTH_PATIENCE);
        matches!(ending, Ending::Answered(reply) if reply.status == 200)
    }

    fn kill(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // It may have ended by itself.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port of the loopback interface that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Chosen: the server's own reserve in a slot.
const RESERVE: usize = 512;

/// Digests that are asked for at a time.
pub(super) const DIGESTS_AT_ONCE: usize = 2;

const START_PATIENCE: Duration = Duration::from_secs(300);

/// Chosen: ten times what a live server on a loaded machine takes to answer.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);
