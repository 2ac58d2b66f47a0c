//! The systems that make vectors: their rates with some cores, and the time of a whole start.

use crate::bench_day::Named;
use crate::bench_day::client::Client;
use crate::bench_day::dialect::{Dialect, EMBED};
use crate::bench_day::models::heg_program;
use crate::bench_peers::genai;
use crate::llama_cpp::LlamaCpp;
use crate::precision::Precision;
use crate::process::{finished, text, timed_json};
use crate::server::{HEG_HEALTH, LLAMA_HEALTH, Server};
use crate::subject::Subject;
use crate::words::texts;
use anyhow::{Context, Result, bail};
use heg_sched::Class;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use xtask::workspace;

/// A system with the model.
#[derive(Debug)]
pub(super) enum Side {
    Heg {
        program: PathBuf,
        bundle: PathBuf,
        name: String,
    },
    Genai {
        python: PathBuf,
        model: PathBuf,
    },
    LlamaServer {
        program: PathBuf,
        model: PathBuf,
    },
}

impl Side {
    pub(super) fn prepare(named: Named, embedder: &Subject, heg: Option<&Path>) -> Result<Self> {
        Ok(match named {
            Named::Heg => Self::Heg {
                program: heg_program(heg)?,
                bundle: embedder.bundle(Precision::EIGHT_BITS)?,
                name: embedder.name.clone(),
            },
            Named::Genai => {
                let bin = genai::environment()?;
                let precision = Precision::EIGHT_BITS;
                let model = genai::ensure_export(&bin, embedder, genai::VECTORS, precision)?;
                let python = bin.join("python");
                Self::Genai { python, model }
            }
            Named::LlamaServer => {
                let llama = LlamaCpp::open(embedder)?;
                let server = "llama-server";
                Self::LlamaServer {
                    program: llama.programs(&[server])?.join(server),
                    model: llama.encoder(embedder)?,
                }
            }
        })
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Heg { .. } => "HEG",
            Self::Genai { .. } => "GenAI",
            Self::LlamaServer { .. } => "llama.cpp",
        }
    }

    /// Texts a second for each length, in requests of many.
    pub(super) fn rates(&self, cores: usize, lengths: &[usize]) -> Result<Vec<f64>> {
        let folder = tempfile::tempdir().context("cannot create a folder")?;
        if let Self::Genai { python, model } = self {
            return genai_rates(pinned(python, cores), model, lengths, folder.path());
        }
        let (server, dialect) = self.serve(cores, folder.path())?;
        let over = AtomicBool::new(false);
        let client = Client {
            dialect,
            port: server.port(),
            over: &over,
        };
        lengths.iter().map(|length| rate(client, *length)).collect()
    }

    /// Time from before the process starts until the vector of one text is there, in ms.
    pub(super) fn first_vector_ms(&self) -> Result<f64> {
        let folder = tempfile::tempdir().context("cannot create a folder")?;
        match self {
            Self::Heg {
                program, bundle, ..
            } => {
                let mut command = workspace::heg(program);
                command.arg("embed").arg(bundle).args(["--text", TEXT]);
                Ok(finished(&mut command, "heg embed")?.first_line_ms)
            }
            Self::Genai { python, model } => {
                let script = write_script(folder.path())?;
                let mut command = Command::new(python);
                command.arg(script).arg("first").arg(model).arg(TEXT);
                Ok(finished(&mut command, "GenAI")?.first_line_ms)
            }
            Self::LlamaServer { .. } => {
                let begin = Instant::now();
                let (server, dialect) = self.serve(cores_here()?, folder.path())?;
                let client = Client {
                    dialect,
                    port: server.port(),
                    over: &AtomicBool::new(false),
                };
                client.embed(&[TEXT.to_owned()], Class::Reactive)?;
                Ok(begin.elapsed().as_secs_f64() * 1e3)
            }
        }
    }

    /// Starts a server on the first cores.
    fn serve(&self, cores: usize, folder: &Path) -> Result<(Server, Dialect)> {
        let (command, health, dialect) = match self {
            Self::Heg {
                program,
                bundle,
                name,
            } => {
                let mut command = pinned(program, cores);
                command.envs(workspace::heg_environment());
                command.arg("serve").arg(bundle).args([
                    "--alias",
                    &format!("{EMBED}={name}"),
                    "--state-mib",
                    "0",
                ]);
                (command, HEG_HEALTH, Dialect::Heg)
            }
            Self::LlamaServer { program, model } => {
                let mut command = pinned(program, cores);
                command
                    .args(["-m", &text(model), "--embeddings", "-t", &cores.to_string()])
                    .args(["-np", "16", "-c", "8192", "-b", "8192", "-ub", "8192"]);
                (command, LLAMA_HEALTH, Dialect::LlamaServer)
            }
            Self::Genai { .. } => bail!("GenAI is a library and has no server"),
        };
        let server = Server::start(command, health, &folder.join("log"))?;
        Ok((server, dialect))
    }
}

/// A program on the first cores.
fn pinned(program: &Path, cores: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &format!("0-{}", cores.saturating_sub(1))]);
    command.arg(program);
    command
}

fn cores_here() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

fn rate(client: Client<'_>, length: usize) -> Result<f64> {
    let texts = texts(length, BATCH);
    client.embed(&texts, Class::Proactive)?;
    let (begin, mut done) = (Instant::now(), 0);
    while begin.elapsed() < SPAN {
        client.embed(&texts, Class::Proactive)?;
        done += texts.len();
    }
    Ok(done as f64 / begin.elapsed().as_secs_f64())
}

fn genai_rates(
    mut python: Command,
    model: &Path,
    lengths: &[usize],
    folder: &Path,
) -> Result<Vec<f64>> {
    let asked: Vec<Vec<String>> = lengths.iter().map(|length| texts(*length, BATCH)).collect();
    let file = folder.join("texts.json");
    fs::write(&file, json!(asked).to_string()).context("cannot write texts")?;
    python
        .arg(write_script(folder)?)
        .arg("rates")
        .args([model, &file])
        .arg(SPAN.as_secs_f64().to_string());
    let (rates, _) = timed_json(&mut python, "GenAI")?;
    serde_json::from_value(rates).context("genai_texts.py printed something else")
}

fn write_script(folder: &Path) -> Result<PathBuf> {
    let script = folder.join("genai_texts.py");
    fs::write(&script, SCRIPT).context("cannot write a script")?;
    Ok(script)
}

const SCRIPT: &str = include_str!("genai_texts.py");

/// Texts of a request. Chosen: what an index of a folder sends.
const BATCH: usize = 64;

/// Least time of a measurement.
const SPAN: Duration = Duration::from_secs(2);

const TEXT: &str = "Will it rain in Oslo tomorrow?";
