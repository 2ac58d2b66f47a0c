//! The systems that serve three models.

use crate::bench_day::dialect::{CHAT, Dialect, EMBED, RERANK};
use crate::bench_day::models::{Bundle, serve};
use crate::llama_cpp::LlamaCpp;
use crate::precision::Precision;
use crate::process::text;
use crate::server::{HEG_HEALTH, LLAMA_HEALTH, Server};
use crate::subject::Subject;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The models of a round, as they were published or made.
pub(super) struct Three {
    pub(super) chat: Subject,
    pub(super) embed: Subject,
    pub(super) rerank: Subject,
}

/// Memory for models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    ForAll,
    /// For the model that answers, or for the smaller ones.
    ForOne,
}

/// A system with its forms of the models, and the room that it has for them.
pub(super) struct Side {
    system: System,
    room: Room,
}

enum System {
    Heg {
        program: PathBuf,
        chat: Bundle,
        embed: Bundle,
        rerank: Bundle,
    },
    Router {
        program: PathBuf,
        chat: PathBuf,
        embed: PathBuf,
        rerank: PathBuf,
    },
}

impl Three {
    pub(super) fn on_heg(&self, program: &Path, room: Room) -> Result<Side> {
        let system = System::Heg {
            program: program.to_path_buf(),
            chat: Bundle::of(&self.chat, Precision::EIGHT_BITS)?,
            embed: Bundle::of(&self.embed, Precision::EIGHT_BITS)?,
            rerank: Bundle::of(&self.rerank, Precision::EIGHT_BITS)?,
        };
        Ok(Side { system, room })
    }

    pub(super) fn on_router(&self, room: Room) -> Result<Side> {
        let llama = LlamaCpp::open(&self.chat)?;
        let server = "llama-server";
        let system = System::Router {
            program: llama.programs(&[server])?.join(server),
            chat: llama.model(&self.chat, Precision::EIGHT_BITS)?,
            embed: llama.encoder(&self.embed)?,
            rerank: llama.encoder(&self.rerank)?,
        };
        Ok(Side { system, room })
    }
}

impl Side {
    pub(super) fn name(&self) -> &'static str {
        match (&self.system, self.room) {
            (System::Heg { .. }, Room::ForAll) => "HEG",
            (System::Heg { .. }, Room::ForOne) => "HEG, one at a time",
            (System::Router { .. }, Room::ForAll) => "llama-server, all loaded",
            (System::Router { .. }, Room::ForOne) => "llama-server, one at a time",
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self.system {
            System::Heg { .. } => Dialect::Heg,
            System::Router { .. } => Dialect::LlamaServer,
        }
    }

    /// The file with the weights of the model that answers.
    pub(super) fn weights(&self) -> &Path {
        match &self.system {
            System::Heg { chat, .. } => &chat.path,
            System::Router { chat, .. } => chat,
        }
    }

    /// Starts it, with what it says in a folder, and waits until it answers.
    pub(super) fn start(&self, folder: &Path) -> Result<Server> {
        let (command, health) = match &self.system {
            System::Heg {
                program,
                chat,
                embed,
                rerank,
            } => {
                let named = [(CHAT, chat), (EMBED, embed), (RERANK, rerank)];
                let mut command = serve(program, &named);
                command.args(["--state-mib", "0"]);
                if self.room == Room::ForOne {
                    let mib = fs::metadata(&chat.path)?.len().div_ceil(1 << 20);
                    command.args(["--resident-mib", &mib.to_string()]);
                }
                (command, HEG_HEALTH)
            }
            System::Router {
                program,
                chat,
                embed,
                rerank,
            } => {
                let file = folder.join("presets.ini");
                fs::write(&file, presets([chat, embed, rerank])?)
                    .with_context(|| format!("cannot write `{}`", file.display()))?;
                let most = match self.room {
                    Room::ForAll => "3",
                    Room::ForOne => "1",
                };
                let mut command = Command::new(program);
                command
                    .env("OMP_WAIT_POLICY", "passive")
                    .args(["--models-preset", &text(&file), "--models-max", most])
                    .args(["--host", "127.0.0.1"]);
                (command, LLAMA_HEALTH)
            }
        };
        Server::start(command, health, &folder.join("log"))
    }
}

/// What a router has to know of each model. Threads do not spin while they wait: more of them than cores would keep each other
/// from working.
fn presets([chat, embed, rerank]: [&PathBuf; 3]) -> Result<String> {
    let threads = std::thread::available_parallelism()?;
    Ok(format!(
        "version = 1\n\n[*]\nthreads = {threads}\npoll = 0\n\n\
         [{CHAT}]\nmodel = {}\nctx-size = {CONTEXT}\nparallel = 1\n\n\
         [{EMBED}]\nmodel = {}\nembeddings = true\n\n\
         [{RERANK}]\nmodel = {}\nreranking = true\n",
        chat.display(),
        embed.display(),
        rerank.display(),
    ))
}

/// Chosen: more than any prompt and its answer here.
const CONTEXT: usize = 512;
