//! A live request of a scheduler for one device.

use crate::event::Finish;
use crate::kv::Refusals;
use crate::request::{Class, RequestId, Submission};

#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) submission: Submission,
    /// Tokens to prefill: the prompt, and what was generated before a restart.
    pub(super) prompt_tokens: u32,
    /// Of these, in the cache.
    pub(super) cached: u32,
    pub(super) generated: u32,
    /// How often in a row an iteration with it alone failed.
    pub(super) failures: u32,
    /// What it knows of memory that could not be had.
    pub(super) refusals: Refusals,
    /// Whether its flow has no further calls.
    pub(super) ends_flow: bool,
    pub(super) ending: Option<Finish>,
}

impl Live {
    pub(super) fn new(submission: Submission) -> Self {
        Self {
            submission,
            prompt_tokens: submission.prompt_tokens,
            cached: 0,
            generated: 0,
            failures: 0,
            refusals: Refusals::default(),
            ends_flow: false,
            ending: None,
        }
    }

    pub(super) fn id(&self) -> RequestId {
        self.submission.id
    }

    pub(super) fn class(&self) -> Class {
        self.submission.class
    }

    /// Nothing that was computed for it counts any more; its answer so far becomes part of its prompt.
    pub(super) fn start_over(&mut self) {
        self.prompt_tokens = self.context();
        self.cached = 0;
        self.submission.shared_tokens = 0;
    }

    pub(super) fn is_decoding(&self) -> bool {
        self.cached >= self.prompt_tokens
    }

    /// Tokens in the cache when it decodes next, the one that is fed then included.
    pub(super) fn context(&self) -> u32 {
        self.submission.prompt_tokens + self.generated
    }
}
