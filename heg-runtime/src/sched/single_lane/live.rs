//! A live request of a scheduler for one device.

use crate::sched::event::Finish;
use crate::sched::request::{Class, RequestId, Submission};

#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) submission: Submission,
    /// Tokens to prefill: the prompt, and what was generated before a restart.
    pub(super) prompt_tokens: u32,
    /// Of these, in the cache.
    pub(super) cached: u32,
    pub(super) generated: u32,
    /// How often an iteration with it failed in a row.
    pub(super) failures: u32,
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

    pub(super) fn is_decoding(&self) -> bool {
        self.cached >= self.prompt_tokens
    }

    /// Tokens in the cache when it decodes next, the one that is fed then included.
    pub(super) fn context(&self) -> u32 {
        self.submission.prompt_tokens + self.generated
    }
}
