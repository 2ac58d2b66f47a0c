//! The servers of a day, with all models.

use super::day::Day;
use super::dialect::{CHAT, DIGEST, Dialect, EMBED, RERANK};
use super::models::{HegModels, LlamaModels, serve};
use crate::process::text;
use crate::server::{HEG_HEALTH, LLAMA_HEALTH, Server};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A program that serves all models.
#[derive(Debug)]
pub(super) enum Program {
    Heg(HegModels),
    LlamaServer(LlamaModels),
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
        let log = folder.join("log");
        match self {
            Self::Heg(models) => Server::start(heg(models, folder), HEG_HEALTH, &log),
            Self::LlamaServer(models) => {
                Server::start(llama_server(models, day, folder)?, LLAMA_HEALTH, &log)
            }
        }
    }
}

fn heg(models: &HegModels, folder: &Path) -> Command {
    let named = [
        (CHAT, &models.chat),
        (DIGEST, &models.digest),
        (EMBED, &models.embed),
        (RERANK, &models.rerank),
    ];
    let mut command = serve(&models.heg, &named);
    command.args(["--state-dir", &text(&folder.join("state"))]);
    command
}

/// The router, with a process for each model once it is asked for, all of them at a time. Their threads do not spin while they
/// wait: more of them than cores would keep each other from working.
fn llama_server(models: &LlamaModels, day: &Day, folder: &Path) -> Result<Command> {
    let threads = std::thread::available_parallelism()?;
    let agents = day.instructions.len();
    // A slot for each agent, so that nobody's conversation is lost to another one's.
    let chat = agents * (day.context() + RESERVE);
    let digests = DIGESTS_AT_ONCE * (day.digest_context() + RESERVE);
    let presets = format!(
        "version = 1\n\n[*]\nthreads = {threads}\npoll = 0\n\n\
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
    command
        .env("OMP_WAIT_POLICY", "passive")
        .args(["--models-preset", &text(&file)])
        .args(["--models-max", "4", "--host", "127.0.0.1"]);
    Ok(command)
}

/// Chosen: the server's own reserve in a slot.
const RESERVE: usize = 512;

/// Digests that are asked for at a time.
pub(super) const DIGESTS_AT_ONCE: usize = 2;
