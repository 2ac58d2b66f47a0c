//! The systems compared: starting each of them, and sending it a trace. Every replay has a fresh process, so that
//! nothing is cached.

use super::results::Run;
use crate::bench_peers::genai::{self, GenAi};
use crate::bench_peers::ours::{self, Ours};
use crate::llama_cpp::LlamaCpp;
use crate::precision::Precision;
use crate::process::{text, timed_json};
use crate::subject::Subject;
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};
use xtask::fail::Fail;
use xtask::workspace::{self, last_lines};

/// The name of our server without drafts.
pub(super) const PLAIN: &str = "heg-plain";

/// The models and options to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum System {
    /// `heg serve`
    Heg,
    /// `heg serve --speculate off`
    HegPlain,
    /// OpenVINO GenAI's continuous batching
    Genai,
    /// llama.cpp's server
    LlamaServer,
}

/// The times at which requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// At their times in the trace.
    Open,
    /// All at the start.
    AtOnce,
}

/// The requested systems, each with its model.
pub(super) struct Systems {
    /// HEG, whose program replays traces to the other systems too.
    ours: Ours,
    genai: Option<(GenAi, PathBuf)>,
    llama: Option<Llama>,
}

/// A built llama-server and a model for it.
struct Llama {
    server: PathBuf,
    model: PathBuf,
}

impl Llama {
    fn prepare(subject: &Subject) -> Result<Self> {
        let llama = LlamaCpp::open(subject)?;
        let server = "llama-server";
        Ok(Self {
            server: llama.programs(&[server])?.join(server),
            model: llama.model(subject, Precision::EightBits)?,
        })
    }
}

impl System {
    /// The systems compared by default.
    pub(super) const USUAL: [Self; 3] = [Self::Heg, Self::Genai, Self::LlamaServer];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Heg => "heg",
            Self::HegPlain => PLAIN,
            Self::Genai => "genai",
            Self::LlamaServer => "llama-server",
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Systems {
    pub(super) fn prepare(
        subject: &Subject,
        genai_model: Option<&Path>,
        wanted: &[System],
    ) -> Result<Self> {
        let ours = ours::prepare(subject, Precision::EightBits)?;
        let genai = match wanted.contains(&System::Genai) {
            true => {
                let script = subject.peers.join("genai_replay.py");
                fs::write(&script, GENAI_REPLAY)
                    .with_context(|| format!("cannot write `{}`", script.display()))?;
                Some((
                    genai::prepare(subject, genai_model, Precision::EightBits)?,
                    script,
                ))
            }
            false => None,
        };
        let llama = match wanted.contains(&System::LlamaServer) {
            true => Some(Llama::prepare(subject)?),
            false => None,
        };
        Ok(Self { ours, genai, llama })
    }

    /// Sends the requests of a trace file to a system, and returns their outcomes. The output of the system's server
    /// goes to `log`.
    pub(super) fn replay(
        &self,
        system: System,
        trace: &Path,
        pace: Pace,
        log: &Path,
    ) -> Result<Run> {
        let mut command = match system {
            System::Genai => return self.replay_in_genai(trace, pace),
            System::Heg => self.serve_heg(),
            System::HegPlain => {
                let mut command = self.serve_heg();
                command.args(["--speculate", "off"]);
                command
            }
            System::LlamaServer => self.serve_llama()?,
        };
        let port = free_port()?;
        command.args(["--port", &port.to_string()]);
        let server = Server::start(&mut command, log)?;
        let mut client = workspace::heg(&self.ours.heg);
        client
            .args(["bench-serve", "--json", "--ready-secs", "300"])
            .args(["--url", &format!("http://127.0.0.1:{port}")])
            .args(["--trace", &text(trace)]);
        if system == System::LlamaServer {
            client.args(["--dialect", "llama-server", "--priority-field", "off"]);
        }
        let printed = timed_json(&mut client, "heg bench-serve");
        let (printed, _) = printed.with_context(|| server.last_words(system))?;
        Run::read(printed)
    }

    /// Time from the start of our server's process until it reports that it is ready, in ms: the median of some starts
    /// on a bundle that was verified before.
    pub(super) fn ready_ms(&self, log: &Path) -> Result<f64> {
        let mut times = (0..STARTS)
            .map(|_| self.start_ms(log))
            .collect::<Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        times
            .get(STARTS / 2)
            .copied()
            .context("no start was measured")
    }

    fn start_ms(&self, log: &Path) -> Result<f64> {
        let port = free_port()?;
        let mut command = self.serve_heg();
        command.args(["--port", &port.to_string()]);
        let begin = Instant::now();
        let server = Server::start(&mut command, log)?;
        while !is_ready(port) {
            if begin.elapsed() > START_PATIENCE {
                return Err(Fail::check(server.last_words(System::Heg)).into());
            }
            sleep(Duration::from_millis(1));
        }
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }

    fn serve_heg(&self) -> Command {
        let mut command = workspace::heg(&self.ours.heg);
        command.args(["serve", &text(&self.ours.bundle)]);
        command
    }

    /// A llama-server with as many slots as there are outstanding requests at the lower loads, each with room for the
    /// longest.
    fn serve_llama(&self) -> Result<Command> {
        let llama = self.llama.as_ref().context("llama-server is not there")?;
        let threads = std::thread::available_parallelism()?.to_string();
        let context = (LLAMA_SLOTS * LLAMA_SLOT_TOKENS).to_string();
        let mut command = Command::new(&llama.server);
        command
            .args(["-m", &text(&llama.model), "-t", &threads, "-c", &context])
            .args(["-np", &LLAMA_SLOTS.to_string(), "--host", "127.0.0.1"]);
        Ok(command)
    }

    fn replay_in_genai(&self, trace: &Path, pace: Pace) -> Result<Run> {
        let (genai, script) = self.genai.as_ref().context("GenAI is not there")?;
        let mode = match pace {
            Pace::Open => "open",
            Pace::AtOnce => "at-once",
        };
        let mut command = Command::new(&genai.python);
        command
            .args([text(script), text(&genai.model), text(trace)])
            .arg(mode);
        Run::read(timed_json(&mut command, "replaying in GenAI")?.0)
    }
}

/// Chosen, as by llama-server's users: its batch has one token for each slot.
const LLAMA_SLOTS: u32 = 8;
/// The longest request of a trace, and the server's own reserve.
const LLAMA_SLOT_TOKENS: u32 = 4096 + 512;

const GENAI_REPLAY: &str = include_str!("genai_replay.py");

/// A port of the loopback interface that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Chosen: an odd number, for a median.
const STARTS: usize = 7;
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Whether our server on this port runs and has loaded its kernels.
fn is_ready(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}

/// A running server, stopped when dropped.
struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let unwritable = || Fail::environment(format!("cannot write `{}`", log.display()));
        let file = File::create(log).with_context(unwritable)?;
        command
            .stdout(file.try_clone().with_context(unwritable)?)
            .stderr(file);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .spawn()
            .with_context(|| Fail::environment(format!("cannot start `{program}`")))?;
        Ok(Self {
            child,
            log: log.to_path_buf(),
        })
    }

    fn last_words(&self, system: System) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        format!("{system} said last: {}", last_lines(&said))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
