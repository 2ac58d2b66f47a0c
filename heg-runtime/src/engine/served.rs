//! A request as its lanes see it: its tokens, and how the next one is chosen.

use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Ask;
use crate::error::RuntimeError;
use crate::mem::{Activations, KvCache};
use crate::sched::RequestId;
use crate::text::{self, Sampler};

/// A request. Shared by the conductor and the lanes that run parts of it.
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
    /// The form that it is held to allows no token, or cannot be followed further; the last token counts for nothing.
    Broken(String),
}

/// What a chosen token means for its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chosen {
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

    /// Gives the tokens so far to `read`.
    pub(super) fn with_tokens<T>(&self, read: impl FnOnce(&[u32]) -> T) -> T {
        // A lane that panicked left whole tokens.
        read(
            &self
                .answer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .tokens,
        )
    }

    /// Why the answer has its last token, if it has.
    pub(super) fn end(&self) -> Option<End> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        answer.end.clone()
    }

    /// Chooses the next token after logits of V values.
    pub(super) fn choose(&self, logits: &mut [f32]) -> Chosen {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, end) = match answer.sampler.sample(logits) {
            Ok((token, said)) => {
                let last = said == text::Answer::Complete || self.eos_ids.contains(&token);
                (token, last.then_some(End::Stop))
            }
            // The others of the batch have their tokens.
            Err(error) => (0, Some(End::Broken(error.to_string()))),
        };
        answer.tokens.push(token);
        answer.end = end;
        match answer.end {
            Some(_) => Chosen::Last,
            None => Chosen::More,
        }
    }
}

/// A request with its KV cache.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) served: Arc<Served>,
    pub(super) cache: Arc<KvCache>,
}

/// A request that prefills: its activations are its own, so that it can be preempted without a copy.
#[derive(Clone)]
pub(super) struct Prompt {
    pub(super) member: Member,
    pub(super) rows: Arc<Activations>,
    /// Position of the first row.
    pub(super) first: u32,
}
