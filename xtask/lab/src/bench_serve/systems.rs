//! The systems compared: starting each of them, and sending it a trace. Every replay has a fresh process, so that
//! nothing is cached.

use super::results::Run;
use crate::bench_peers::genai::{self, GenAi};
use crate::bench_peers::ours::{self, Ours};
use crate::llama_cpp::LlamaCpp;
use crate::precision::Precision;
use crate::process::{text, timed_json};
use crate::server::{HEG_HEALTH, LLAMA_HEALTH, Server};
use crate::subject::Subject;
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;
use xtask::workspace;

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
            model: llama.model(subject, Precision::EIGHT_BITS)?,
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
        let ours = ours::prepare(subject, Precision::EIGHT_BITS)?;
        let genai = match wanted.contains(&System::Genai) {
            true => {
                let script = subject.peers.join("genai_replay.py");
                fs::write(&script, GENAI_REPLAY)
                    .with_context(|| format!("cannot write `{}`", script.display()))?;
                Some((
                    genai::prepare(subject, genai_model, Precision::EIGHT_BITS)?,
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
        let state = empty_folder()?;
        let (command, health) = match system {
            System::Genai => return self.replay_in_genai(trace, pace),
            System::Heg => (self.serve_heg(state.path()), HEG_HEALTH),
            System::HegPlain => {
                let mut command = self.serve_heg(state.path());
                command.args(["--speculate", "off"]);
                (command, HEG_HEALTH)
            }
            System::LlamaServer => (self.serve_llama()?, LLAMA_HEALTH),
        };
        let server = Server::start(command, health, log)?;
        let mut client = workspace::heg(&self.ours.heg);
        client
            .args(["bench-serve", "--json"])
            .args(["--url", &format!("http://127.0.0.1:{}", server.port())])
            .args(["--trace", &text(trace)]);
        if system == System::LlamaServer {
            client.args(["--dialect", "llama-server", "--priority-field", "off"]);
        }
        let printed = timed_json(&mut client, "heg bench-serve");
        let (printed, _) = printed.with_context(|| format!("{system}: {}", server.last_words()))?;
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
        let state = empty_folder()?;
        let begin = Instant::now();
        let _server = Server::start(self.serve_heg(state.path()), HEG_HEALTH, log)?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }

    /// A server that keeps what it reads in `state`, as it does by default in a folder that others find again.
    fn serve_heg(&self, state: &Path) -> Command {
        let mut command = workspace::heg(&self.ours.heg);
        command.args(["serve", &text(&self.ours.bundle)]);
        command.args(["--state-dir", &text(state)]);
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

/// A folder for the kept state of one run: with that of the run before it, no prompt of the same trace would be read.
fn empty_folder() -> Result<TempDir> {
    tempfile::tempdir().context("cannot create a folder")
}

/// Chosen, as by llama-server's users: its batch has one token for each slot.
const LLAMA_SLOTS: u32 = 8;
/// The longest request of a trace, and the server's own reserve.
const LLAMA_SLOT_TOKENS: u32 = 4096 + 512;

const GENAI_REPLAY: &str = include_str!("genai_replay.py");

/// Chosen: an odd number, for a median.
const STARTS: usize = 7;
