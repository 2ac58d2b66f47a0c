//! A server on a loopback port: started, waited for until it answers, killed with all its processes, and started again.

use crate::bench_attacks::tree::ProcessTree;
use crate::bench_attacks::wire::{self, Ending};
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};
use xtask::fail::Fail;
use xtask::workspace::last_lines;

/// A running server, killed when dropped.
pub(crate) struct Server {
    command: Command,
    child: Child,
    port: u16,
    /// The path that says whether it serves.
    health: &'static str,
    log: PathBuf,
}

impl Server {
    /// Starts a command with a free port as its option `--port`, and waits until it answers. What it says goes to the file
    /// `log`.
    pub(crate) fn start(mut command: Command, health: &'static str, log: &Path) -> Result<Self> {
        let port = free_port()?;
        // In this process's group, so that Ctrl-C ends it, too.
        command.args(["--port", &port.to_string()]);
        let child = spawn(&mut command, log)?;
        let mut server = Self {
            command,
            child,
            port,
            health,
            log: log.to_path_buf(),
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Kills the server as `kill -9` does, starts it again on the same port, and waits until it answers.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.kill();
        self.child = spawn(&mut self.command, &self.log)?;
        self.wait_until_ready()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn tree(&self) -> ProcessTree {
        ProcessTree::of(self.child.id())
    }

    pub(crate) fn last_words(&self) -> String {
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
            sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    fn is_answering(&self) -> bool {
        let request = wire::get(self.health, "");
        let ending = wire::exchange(self.port, &request, HEALTH_PATIENCE);
        matches!(ending, Ending::Answered(reply) if reply.status == 200)
    }

    fn kill(&mut self) {
        self.tree().kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
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

/// A port of the loopback interface that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Health of `heg serve`, once its kernels are ready.
pub(crate) const HEG_HEALTH: &str = "/healthz";

/// Health of llama.cpp's server.
pub(crate) const LLAMA_HEALTH: &str = "/health";

/// Chosen: an old disk reads a model of 8B in that time.
const START_PATIENCE: Duration = Duration::from_secs(300);

/// Chosen: a small part of the shortest start.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Chosen: ten times what a live server on a loaded machine takes to answer.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);
