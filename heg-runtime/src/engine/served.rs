//! A request as its lanes see it: its tokens, and how the next one is chosen.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::RequestCache;
use super::request::{EndTokens, Request};
use crate::error::RuntimeError;
use crate::mem::Activations;
use heg_sched::RequestId;
use heg_text::{Choice, Sampler, TextError};

/// A request. The conductor shares it with the lanes that run parts of it: lanes read, the conductor alone adds tokens.
pub(super) struct Served {
    pub(super) id: RequestId,
    /// Tokens that end the answer.
    eos_ids: Vec<u32>,
    answer: Mutex<Answer>,
}

struct Answer {
    /// Prompt and answer.
    tokens: Vec<u32>,
    sampler: Sampler,
}

/// The token that a lane chose after a request's logits, or why there is none. It is no part of the answer before the
/// conductor commits it: the report of a lane that was given up meanwhile is dropped.
#[derive(Debug)]
pub(super) struct NextToken(Result<Choice, TextError>);

/// A token that has become part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) token: u32,
    pub(super) follows: Follows,
}

/// What comes after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    More,
    /// Nothing: it is an end-of-sequence token, or completes the answer's grammar.
    Nothing,
}

impl Served {
    /// `eos_ids` are the model's.
    pub(super) fn new(
        id: RequestId,
        request: Request,
        eos_ids: &[u32],
    ) -> Result<Self, RuntimeError> {
        let sampler = Sampler::new(request.sampling, &request.prompt)?;
        let sampler = sampler.biased(request.logit_bias)?;
        Ok(Self {
            id,
            eos_ids: match request.end_tokens {
                EndTokens::End => eos_ids.to_vec(),
                EndTokens::Ignored => Vec::new(),
            },
            answer: Mutex::new(Answer {
                sampler: sampler.restricted(request.restriction),
                tokens: request.prompt,
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

    /// Chooses the next token after logits of V values: the lane's part. The same logits give the same token again
    /// until one is committed.
    pub(super) fn choose(&self, logits: &mut [f32]) -> NextToken {
        NextToken(self.answer().sampler.choose(logits))
    }

    /// Takes a lane's token into the answer: the conductor's part.
    ///
    /// # Errors
    ///
    /// Where the answer's grammar allows no token, or cannot be followed further.
    pub(super) fn commit(&self, next: NextToken) -> Result<Committed, RuntimeError> {
        let choice = next.0?;
        let token = choice.token();
        let mut answer = self.answer();
        let grammar = answer.sampler.commit(choice)?;
        answer.tokens.push(token);
        let is_last = grammar == heg_text::GrammarState::Complete || self.eos_ids.contains(&token);
        let follows = match is_last {
            true => Follows::Nothing,
            false => Follows::More,
        };
        Ok(Committed { token, follows })
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
