//! The systems that make vectors: their rates with some cores, and the time of a whole start.

use super::library::Library;
use crate::bench_day::client::Client;
use crate::bench_day::dialect::{Dialect, EMBED};
use crate::bench_day::models::heg_program;
use crate::llama_cpp::LlamaCpp;
use crate::precision::Precision;
use crate::process::{finished, text};
use crate::server::{HEG_HEALTH, LLAMA_HEALTH, Server};
use crate::subject::Subject;
use crate::words::texts;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use heg_sched::Class;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use xtask::workspace;

/// A system of `--systems`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Named {
    /// `heg serve`
    Heg,
    /// OpenVINO GenAI, as a library
    Genai,
    /// ONNX Runtime, as a library
    Onnxruntime,
    /// llama.cpp's server
    LlamaServer,
}

/// A system with the model.
#[derive(Debug)]
pub(super) enum Side {
    Heg {
        program: PathBuf,
        bundle: PathBuf,
        name: String,
    },
    Library(Library),
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
            Named::Genai => Self::Library(Library::genai(embedder)?),
            Named::Onnxruntime => Self::Library(Library::onnxruntime(embedder)?),
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
            Self::Library(library) => library.name,
            Self::LlamaServer { .. } => "llama.cpp",
        }
    }

    /// Texts a second for each length, in requests of many.
    pub(super) fn rates(&self, cores: usize, lengths: &[usize]) -> Result<Vec<f64>> {
        let texts: Vec<_> = lengths.iter().map(|it| texts(*it, BATCH)).collect();
        if let Self::Library(library) = self {
            return library.rates(cores, &texts, SPAN);
        }
        self.asked(cores, |client| {
            texts.iter().map(|texts| rate(client, texts)).collect()
        })
    }

    /// The vector of each text.
    pub(super) fn vectors(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        if let Self::Library(library) = self {
            return library.vectors(texts);
        }
        self.asked(cores_here()?, |client| {
            let parts = texts.chunks(BATCH);
            let parts = parts.map(|part| client.vectors(part, Class::Proactive));
            Ok(parts.collect::<Result<Vec<_>>>()?.concat())
        })
    }

    /// Time from before the process starts until the vector of one text is there, in ms.
    pub(super) fn first_vector_ms(&self) -> Result<f64> {
        match self {
            Self::Heg {
                program, bundle, ..
            } => {
                let mut command = workspace::heg(program);
                command.arg("embed").arg(bundle).args(["--text", TEXT]);
                Ok(finished(&mut command, "heg embed")?.first_line_ms)
            }
            Self::Library(library) => library.first_vector_ms(TEXT),
            Self::LlamaServer { .. } => {
                let begin = Instant::now();
                self.asked(cores_here()?, |client| {
                    client.embed(&[TEXT.to_owned()], Class::Reactive)?;
                    Ok(begin.elapsed().as_secs_f64() * 1e3)
                })
            }
        }
    }

    /// Starts a server on the first cores, and asks it.
    fn asked<T>(&self, cores: usize, ask: impl FnOnce(Client<'_>) -> Result<T>) -> Result<T> {
        let folder = tempfile::tempdir().context("cannot create a folder")?;
        let (server, dialect) = self.serve(cores, folder.path())?;
        ask(Client {
            dialect,
            port: server.port(),
            over: &AtomicBool::new(false),
        })
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
            Self::Library(library) => bail!("{} is a library and has no server", library.name),
        };
        let server = Server::start(command, health, &folder.join("log"))?;
        Ok((server, dialect))
    }
}

/// A program on the first cores.
pub(super) fn pinned(program: &Path, cores: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &format!("0-{}", cores.saturating_sub(1))]);
    command.arg(program);
    command
}

fn cores_here() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

fn rate(client: Client<'_>, texts: &[String]) -> Result<f64> {
    client.embed(texts, Class::Proactive)?;
    let (begin, mut done) = (Instant::now(), 0);
    while begin.elapsed() < SPAN {
        client.embed(texts, Class::Proactive)?;
        done += texts.len();
    }
    Ok(done as f64 / begin.elapsed().as_secs_f64())
}

/// Texts of a request. Chosen: what an index of a folder sends.
const BATCH: usize = 64;

/// Least time of a measurement.
const SPAN: Duration = Duration::from_secs(2);

const TEXT: &str = "Will it rain in Oslo tomorrow?";
