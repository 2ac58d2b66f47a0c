//! Prompts, made in processes of the worker.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use heg_text::TextError;

use crate::error::Confined;
use crate::leash::Wait;
use crate::message::{PromptWork, TextToEncode};
use crate::platform::Frames;
use crate::prompt_child::{Reply, read_reply};
use crate::worker::TextWorker;

/// Processes that make prompts, as many as there were pieces of work at once.
#[derive(Debug)]
pub struct PromptMaker {
    worker: TextWorker,
    idle: Mutex<Vec<Frames>>,
}

impl PromptMaker {
    /// Creates a maker of prompts by the tokenizer and the template of a worker.
    pub fn new(worker: TextWorker) -> Self {
        Self {
            worker,
            idle: Mutex::default(),
        }
    }

    /// Returns the tokens of a text: all of them, or more than `tokens_max` if there are more.
    ///
    /// # Errors
    /// `Refused`, if the template or the tokenizer refuses it, or it exceeds a limit; `Deadline`, `Gone`, `Lost`.
    pub fn tokens(
        &self,
        text: &TextToEncode,
        tokens_max: usize,
        wait: Wait<'_>,
    ) -> Result<Vec<u32>, Confined> {
        let (mut texts, refused) = self.piece(std::slice::from_ref(text), tokens_max, wait)?;
        match (texts.pop(), refused) {
            (Some(tokens), _) => Ok(tokens),
            (None, Some(error)) => Err(error.into()),
            (None, None) => Err(Confined::lost("a reply without tokens")),
        }
    }

    /// Returns the tokens of each text, as [`tokens`](Self::tokens) does. Many texts are one piece of work.
    ///
    /// # Errors
    /// The same, with the place of the first text that is refused, or that was not encoded.
    pub fn tokens_of_all(
        &self,
        texts: &[TextToEncode],
        tokens_max: usize,
        wait: Wait<'_>,
    ) -> Result<Vec<Vec<u32>>, (usize, Confined)> {
        let mut all = Vec::with_capacity(texts.len());
        while let Some(rest) = texts.get(all.len()..).filter(|rest| !rest.is_empty()) {
            let piece = rest.get(..piece_of(rest)).unwrap_or(rest);
            let encoded = self.piece(piece, tokens_max, wait);
            let (tokens, refused) = encoded.map_err(|error| (all.len(), error))?;
            let is_whole = tokens.len() == piece.len();
            all.extend(tokens);
            match refused {
                Some(error) => return Err((all.len(), error.into())),
                None if is_whole => {}
                None => return Err((all.len(), Confined::lost("a reply without tokens"))),
            }
        }
        Ok(all)
    }

    /// Has texts encoded by one process.
    fn piece(
        &self,
        texts: &[TextToEncode],
        tokens_max: usize,
        wait: Wait<'_>,
    ) -> Result<Reply, Confined> {
        let tokens_max = tokens_max.saturating_add(1);
        let message = PromptWork::to_bytes(texts, tokens_max as u64, bounds);
        let text_max = tokens_max.saturating_mul(4).saturating_add(TEXT_BYTES);
        let reply_max = text_max.saturating_mul(texts.len());
        let reply_max = reply_max.saturating_add(REPLY_BYTES);
        // The loss of an idle process says nothing about these texts.
        while let Some(frames) = self.idle(reply_max) {
            match self.work(frames, &message, wait) {
                Err(Confined::Lost { .. }) => {}
                outcome => return outcome,
            }
        }
        self.work(self.worker.prompts(reply_max)?, &message, wait)
    }

    /// Gives work to a process, and keeps the process for the next work if that can use it.
    fn work(&self, mut frames: Frames, message: &[u8], wait: Wait<'_>) -> Result<Reply, Confined> {
        let (_, seconds) = bounds(message.len() as u64);
        let until = wait.until(Instant::now() + CLOCK_FACTOR * Duration::from_secs(seconds));
        let collar = frames.collar().map_err(Confined::lost)?;
        let reply = wait.holding(collar, || {
            let sent = frames.send_until(message, Some(until));
            let reply = sent.and_then(|()| frames.receive_until(Some(until)));
            let reply = reply.map_err(|silence| wait.failure(silence, overrun))?;
            read_reply(&reply).ok_or_else(|| Confined::lost("a reply that is none"))
        })?;
        // A process that made a large prompt keeps that memory, so it is not reused.
        if message.len() <= KEPT_BYTES {
            self.lock().push(frames);
        }
        Ok(reply)
    }

    /// Returns an idle process; those that have ended are skipped.
    fn idle(&self, reply_max: usize) -> Option<Frames> {
        loop {
            let mut frames = self.lock().pop()?;
            if frames.is_quiet() {
                frames.receive_at_most(reply_max);
                return Some(frames);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Frames>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of texts, at least one, that are one piece of work: so few that the process is kept behind it.
fn piece_of(texts: &[TextToEncode]) -> usize {
    let mut bytes: usize = 0;
    let fits = texts.iter().take_while(|text| {
        bytes = bytes
            .saturating_add(text.bytes())
            .saturating_add(TEXT_BYTES);
        bytes <= KEPT_BYTES / 2
    });
    fits.count().clamp(1, PIECE_MAX)
}

/// Returns the error for a prompt that exceeds a limit.
fn overrun(why: &str) -> TextError {
    TextError::Overrun {
        what: "the chat template or the tokenizer of this bundle cannot make a prompt of this",
        why: why.to_owned(),
    }
}

/// Limits for work of this size: memory in bytes, and processor time in seconds.
fn bounds(bytes: u64) -> (u64, u64) {
    let heap_bytes = HEAP_BYTES + HEAP_BYTES_PER_BYTE * bytes;
    (heap_bytes, SECONDS + bytes / BYTES_PER_SECOND)
}

/// Memory that every prompt may take, in bytes.
const HEAP_BYTES: u64 = 48 << 20;

/// Memory that a prompt may take for each byte of its text, in bytes. Measured: the library takes 150.
const HEAP_BYTES_PER_BYTE: u64 = 512;

/// Size of a text in a message or a reply besides its content, in bytes.
const TEXT_BYTES: usize = 64;

/// Most texts of a piece of work. Chosen: a time limit counts for them all, and a reply is bounded.
const PIECE_MAX: usize = 256;

/// Size of a reply besides its tokens, in bytes: an error message.
const REPLY_BYTES: usize = 64 << 10;

/// Processor time that every prompt may take, in seconds. Chosen: prompts take milliseconds.
const SECONDS: u64 = 2;

/// Number of bytes of text for which a prompt gets a further second. Measured: a tenth of the text that is encoded in
/// one.
const BYTES_PER_SECOND: u64 = 250_000;

/// Wall-clock time for each second of processor time. Chosen: a busy machine gives a process a fifth of a core.
const CLOCK_FACTOR: u32 = 5;

/// Size of the largest work after which a process is kept, in bytes.
const KEPT_BYTES: usize = 256 << 10;
