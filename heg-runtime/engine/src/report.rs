//! Reports: the results of a lane's jobs, and of compiling a kernel beside it.

use std::time::Duration;

use super::scores::Score;
use super::served::NextToken;
use super::stopwatch::Longest;
use crate::error::EngineError;
use heg_exec::mem::KvCache;
use heg_exec::{ExecError, WarmForms};
use heg_sched::{Lane, RequestId, Ticket, WarmKernel};

/// A lane's report of a job.
pub(super) struct Report {
    pub(super) lane: Lane,
    pub(super) ticket: Ticket,
    pub(super) outcome: Result<Done, Failure>,
    /// Drafted tokens that were not run, since a grammar refuses them.
    pub(super) refused: Vec<(RequestId, u32)>,
    pub(super) took: Duration,
    /// The longest times of the lane so far.
    pub(super) longest: Longest,
}

impl Report {
    /// Why the lane can run nothing more, if its device is lost.
    pub(super) fn loss(&self) -> Option<String> {
        match &self.outcome {
            Err(failure) => match &failure.error {
                EngineError::Exec(error) if error.is_loss() => Some(heg_exec::chain(error)),
                _ => None,
            },
            Ok(_) => None,
        }
    }
}

/// The result of a job.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// For decoding: layers that ran, counted from the first.
    pub(super) layers: u32,
    /// The next tokens of each request that has some now, to be committed in this order.
    pub(super) tokens: Vec<(RequestId, NextToken)>,
    /// Log probabilities of tokens of prompts.
    pub(super) scores: Vec<(RequestId, Vec<Score>)>,
    /// For each request's draft, whether each token is the one that the model found likeliest there: for tokens
    /// behind the first wrong one whose logits were looked at.
    pub(super) likeliest: Vec<(RequestId, Vec<bool>)>,
    /// The keys and values of the last layer of a prompt that is kept.
    pub(super) last_layer: Option<(RequestId, KvCache)>,
}

impl Done {
    /// Adds the log probabilities computed for a request, if there are any.
    pub(super) fn add_scores(&mut self, request: RequestId, scores: Vec<Score>) {
        if !scores.is_empty() {
            self.scores.push((request, scores));
        }
    }
}

/// The reason why a job has no result.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: EngineError,
    /// The request whose cache could not be read, if that is the reason; no kernel has run then.
    pub(super) unread: Option<RequestId>,
}

impl From<ExecError> for Failure {
    fn from(error: ExecError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self {
            error,
            unread: None,
        }
    }
}

/// The outcome of a kernel's compilation.
pub(super) struct Warmed {
    pub(super) kernel: WarmKernel,
    pub(super) outcome: Result<WarmForms, ExecError>,
    pub(super) took: Duration,
}
