//! A server under attack: started with resource limits, so that a successful attack ends the server and not the
//! machine, and stopped with all its processes.

use super::tree::ProcessTree;
use super::wire::{self, Ending};
use crate::process::text;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use xtask::fail::Fail;
use xtask::workspace::{heg, last_lines};

/// The attacking client's token.
pub(crate) const ATTACKER: &str = "aaaa";

/// The token of the client measured beside it.
pub(crate) const OTHER: &str = "bbbb";

/// The token of an operator, who sees the load of all clients.
pub(super) const OPERATOR: &str = "cccc";

/// The settings for starting a server.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) heg: PathBuf,
    pub(crate) bundle: PathBuf,
    /// Options of `heg serve` beside port and tokens.
    pub(crate) options: Vec<String>,
    /// Address space limit of each of its processes, in GiB.
    pub(crate) address_gib: u64,
    /// Largest number of open files and connections.
    pub(crate) files: u64,
    /// Whether the server knows the tokens of the two clients and the operator.
    pub(crate) tokens: bool,
}

/// A running server, stopped when dropped.
pub(crate) struct AttackedServer {
    child: Child,
    port: u16,
    /// Its output, and the file of tokens.
    folder: TempDir,
}

impl Start {
    /// Starts the server and waits until it answers.
    pub(crate) fn server(&self) -> Result<AttackedServer> {
        let folder = TempDir::new().context("cannot make a folder for the server's log")?;
        let tokens = folder.path().join("tokens");
        let lines = format!("attacker {ATTACKER}\nother {OTHER}\nwatch {OPERATOR} operator\n");
        fs::write(&tokens, lines)
            .and_then(|()| fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)))
            .with_context(|| format!("cannot write `{}`", tokens.display()))?;
        let child = self.command(folder.path(), &tokens)?.spawn();
        let child = child.with_context(|| Fail::environment("cannot start `sh`"))?;
        let mut server = AttackedServer {
            child,
            port: 0,
            folder,
        };
        server.wait_until_ready(&self.heg)?;
        Ok(server)
    }

    fn command(&self, folder: &Path, tokens: &Path) -> Result<Command> {
        let path = folder.join(LOG);
        let unwritable = || Fail::environment(format!("cannot write `{}`", path.display()));
        let log = File::create(&path).with_context(unwritable)?;
        // A shell that sets the limits and then becomes the server.
        let mut command = heg(Path::new("sh"));
        command
            .args(["-c", BOUNDED, "sh"])
            .arg((self.address_gib << 20).to_string())
            .arg(self.files.to_string())
            .args([
                &text(&self.heg),
                "serve",
                &text(&self.bundle),
                "--port",
                "0",
            ])
            .args(&self.options)
            .stdout(log.try_clone().with_context(unwritable)?)
            .stderr(log)
            // All its child processes can then be ended with it.
            .process_group(0);
        if self.tokens {
            command.args(["--token-file", &text(tokens)]);
        }
        Ok(command)
    }
}

/// Runs a program with limits on memory (KiB) and files.
const BOUNDED: &str = r#"ulimit -v "$1" && ulimit -n "$2" && shift 2 && exec "$@""#;

const LOG: &str = "log";

impl AttackedServer {
    fn wait_until_ready(&mut self, heg: &Path) -> Result<()> {
        let begin = Instant::now();
        loop {
            if let Some(ending) = self.ending() {
                let message = format!("`{} serve` {ending}: {}", heg.display(), self.last_words());
                return Err(Fail::check(message).into());
            }
            if let Some(port) = self.said_port() {
                self.port = port;
                if self.is_answering() {
                    return Ok(());
                }
            }
            if begin.elapsed() > START_PATIENCE {
                let message = format!("the server is not ready: {}", self.last_words());
                return Err(Fail::check(message).into());
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// The port in its message that it is listening.
    fn said_port(&self) -> Option<u16> {
        let said = fs::read_to_string(self.folder.path().join(LOG)).ok()?;
        let (_, rest) = said.split_once("http://127.0.0.1:")?;
        let (port, _) = rest.split_once("/v1")?;
        port.parse().ok()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn tree(&self) -> ProcessTree {
        ProcessTree::of(self.child.id())
    }

    /// Whether it answers a health check.
    pub(super) fn is_answering(&self) -> bool {
        let request = wire::get("/healthz", OTHER);
        let ending = wire::exchange(self.port, &request, HEALTH_PATIENCE);
        matches!(ending, Ending::Answered(reply) if reply.status == 200)
    }

    /// The way in which it ended, as text; `None` while it runs.
    pub(super) fn ending(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(in_words)
    }

    /// The last lines of its output.
    pub(super) fn last_words(&self) -> String {
        let said = fs::read_to_string(self.folder.path().join(LOG));
        last_lines(&said.unwrap_or_default())
    }

    /// Asks it to end, like an init system.
    pub(super) fn terminate(&self) {
        if let Some(pid) = self.pid() {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }
}

impl Drop for AttackedServer {
    fn drop(&mut self) {
        // The process id stays reserved until it is waited for, which `ending` may have done.
        if self.ending().is_none()
            && let Some(group) = self.pid()
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

const START_PATIENCE: Duration = Duration::from_secs(60);

/// Chosen: ten times what a live server on a loaded machine takes to answer.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);
