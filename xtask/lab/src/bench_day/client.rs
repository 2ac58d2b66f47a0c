//! Asking a server: whole answers, and streams of token ids with the times at which they come.

use super::dialect::{Asked, Dialect, Prompt};
use crate::bench_attacks::wire::{self, Dechunker, Ending, Reply, Wire};
use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heg_sched::Class;
use heg_workload::ReplyReader;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xtask::fail::Fail;

/// Asks one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'c> {
    pub(crate) dialect: Dialect,
    pub(crate) port: u16,
    /// Whether nobody waits for answers any more.
    pub(crate) over: &'c AtomicBool,
}

/// An answer that has come as a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Streamed {
    pub(crate) ids: Vec<u32>,
    /// Time from the question to the first token, and to the last.
    pub(crate) first: Duration,
    pub(crate) end: Duration,
}

impl Client<'_> {
    /// Asks for an answer, and reads it as it comes.
    pub(crate) fn complete(&self, prompt: Prompt<'_>) -> Result<Streamed> {
        let begin = Instant::now();
        let mut wire = self.send(self.dialect.complete(prompt))?;
        let is_over = self.is_over(begin);
        let head = wire.head(&is_over).map_err(|ending| failed(&ending))?;
        if head.status != 200 {
            return Err(failed(&wire.reply(&is_over)));
        }
        wire.skip_head(head);
        let (mut reader, mut chunks) = (ReplyReader::default(), Dechunker::default());
        let (mut ids, mut first) = (Vec::new(), None);
        while ids.len() < prompt.tokens {
            let part = wire.next_part(&is_over);
            let mut part = part.map_err(|ending| failed(&ending))?;
            if head.is_chunked {
                part = chunks.feed(&part);
            }
            for data in reader.feed(&part).context("an event has no end")? {
                ids.extend(self.dialect.ids(&data).map_err(|said| anyhow!(said))?);
            }
            if !ids.is_empty() {
                first.get_or_insert_with(|| begin.elapsed());
            }
        }
        ids.truncate(prompt.tokens);
        let end = begin.elapsed();
        let first = first.unwrap_or(end);
        Ok(Streamed { ids, first, end })
    }

    /// Asks for vectors of texts.
    pub(crate) fn embed(&self, texts: &[String], class: Class) -> Result<()> {
        let vectors = self.whole(self.dialect.embed(texts, class))?;
        match vectors["data"].as_array().map(Vec::len) {
            Some(count) if count == texts.len() => Ok(()),
            count => bail!("expected {} vectors, found {count:?}", texts.len()),
        }
    }

    /// Asks for vectors of texts, and returns them.
    pub(crate) fn vectors(&self, texts: &[String], class: Class) -> Result<Vec<Vec<f32>>> {
        let answer = self.whole(self.dialect.embed(texts, class))?;
        let vectors = answer["data"].as_array().map_or(&[][..], Vec::as_slice);
        vectors
            .iter()
            .map(|one| floats(&one["embedding"]))
            .collect()
    }

    /// Asks for scores of documents under a query.
    pub(crate) fn rerank(&self, query: &str, documents: &[String]) -> Result<()> {
        let scores = self.whole(self.dialect.rerank(query, documents))?;
        match scores["results"].as_array().map(Vec::len) {
            Some(count) if count == documents.len() => Ok(()),
            count => bail!("expected {} scores, found {count:?}", documents.len()),
        }
    }

    fn whole(&self, asked: Asked) -> Result<Value> {
        let begin = Instant::now();
        match self.send(asked)?.reply(&self.is_over(begin)) {
            Ending::Answered(reply) if reply.status == 200 => Ok(reply.json()),
            ending => Err(failed(&ending)),
        }
    }

    fn send(&self, (path, body): Asked) -> Result<Wire> {
        let mut wire = Wire::open(self.port, None).context("cannot connect to the server")?;
        wire.send(&wire::post(path, TOKEN, &body.to_string()))
            .context("cannot send a question")?;
        Ok(wire)
    }

    fn is_over(&self, begin: Instant) -> impl Fn() -> bool {
        let over = self.over;
        move || over.load(Ordering::Relaxed) || begin.elapsed() > PATIENCE
    }
}

/// Little-endian f32 in base64.
fn floats(base64: &Value) -> Result<Vec<f32>> {
    let bytes = STANDARD.decode(base64.as_str().unwrap_or_default())?;
    let (floats, rest) = bytes.as_chunks();
    ensure!(
        rest.is_empty() && !floats.is_empty(),
        "expected a vector in base64, found {base64}"
    );
    Ok(floats.iter().map(|it| f32::from_le_bytes(*it)).collect())
}

/// A refusal is a [`Fail`]; a line that was cut is none.
fn failed(ending: &Ending) -> anyhow::Error {
    match ending {
        Ending::Answered(reply) => {
            let message = format!("the server answered {}: {}", reply.status, said(reply));
            Fail::check(message).into()
        }
        Ending::Cut => anyhow!("the server closed the connection"),
        Ending::GaveUp => anyhow!("nobody waited any longer"),
    }
}

/// The reason of a refusal, in the server's own form if it has another one.
fn said(reply: &Reply) -> String {
    match reply.reason() {
        reason if reason.is_empty() => String::from_utf8_lossy(&reply.body).into_owned(),
        reason => reason,
    }
}

/// No server here knows tokens of clients.
const TOKEN: &str = "anybody";

/// Chosen: several times what the slowest server needs to read the longest instructions beside background work.
const PATIENCE: Duration = Duration::from_secs(900);
