//! A request as its lanes see it: its tokens, and how the next one is chosen.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::RequestCache;
use crate::engine::Ask;
use crate::error::RuntimeError;
use crate::mem::Activations;
use heg_sched::RequestId;
use heg_text::{self, Choice, Sampler};

/// A request. Shared by the conductor and the lanes that run parts of it: lanes read, the conductor alone adds tokens.
pub(super) struct Served {
    pub(super) id: RequestId,
    eos_ids: Vec<u32>,
    answer: Mutex<Answer>,
}

struct Answer {
    /// Prompt and answer.
    tokens: Vec<u32>,
    sampler: Sampler,
    end: Option<End>,
}

/// Why an answer has its last token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The model said so, or its form is complete.
    Stop,
    /// The form that it is held to allows no token, or cannot be followed further; no token came of that.
    Broken(String),
}

/// What a lane makes of a request's logits. It is no part of the answer before the conductor commits it: what a lane
/// says that was given up meanwhile is dropped.
#[derive(Debug)]
pub(super) struct Proposal(Result<Choice, String>);

/// What a committed token means for its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Committed {
    More,
    Last,
}

impl Served {
    pub(super) fn new(id: RequestId, ask: Ask) -> Result<Self, RuntimeError> {
        Ok(Self {
            id,
            eos_ids: ask.eos_ids,
            answer: Mutex::new(Answer {
                sampler: Sampler::new(ask.sampling, &ask.prompt)?.restricted(ask.restriction),
                tokens: ask.prompt,
                end: None,
            }),
        })
    }

    fn answer(&self) -> MutexGuard<'_, Answer> {
        // A lane that panicked changed neither tokens nor sampler.
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the tokens so far to `read`.
    pub(super) fn with_tokens<T>(&self, read: impl FnOnce(&[u32]) -> T) -> T {
        read(&self.answer().tokens)
    }

    /// Why the answer has its last token, if it has.
    pub(super) fn end(&self) -> Option<End> {
        self.answer().end.clone()
    }

    /// Chooses the next token after logits of V values: a lane's part. As often as it is asked, it says the same.
    pub(super) fn propose(&self, logits: &mut [f32]) -> Proposal {
        let choice = self.answer().sampler.choose(logits);
        Proposal(choice.map_err(|error| error.to_string()))
    }

    /// Takes a proposed token into the answer: the conductor's part.
    pub(super) fn commit(&self, proposal: Proposal) -> Committed {
        let mut answer = self.answer();
        let said = proposal.0.and_then(|choice| {
            let token = choice.token();
            let said = answer.sampler.commit(choice);
            Ok((token, said.map_err(|error| error.to_string())?))
        });
        answer.end = match said {
            Ok((token, said)) => {
                answer.tokens.push(token);
                let last = said == heg_text::Answer::Complete || self.eos_ids.contains(&token);
                last.then_some(End::Stop)
            }
            // The others of the batch have their tokens.
            Err(why) => Some(End::Broken(why)),
        };
        match answer.end {
            Some(_) => Committed::Last,
            None => Committed::More,
        }
    }
}

/// A request with its KV cache.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) served: Arc<Served>,
    pub(super) cache: RequestCache,
}

/// Activations of a request that prefills: its own, so that it can be preempted without a copy.
#[derive(Clone)]
pub(super) struct PromptRows {
    pub(super) rows: Arc<Activations>,
    /// Position of the first row.
    pub(super) first: u32,
}

/// A request that prefills.
pub(super) struct Prompt {
    pub(super) member: Member,
    pub(super) rows: PromptRows,
}
