//! Reports: the results of a lane's jobs, and of compiling a kernel beside it.

use std::time::Duration;

use super::scores::Score;
use super::served::NextToken;
use super::stopwatch::Longest;
use crate::error::EngineError;
use heg_exec::mem::KvCache;
use heg_exec::{ExecError, Loss, WarmForms};
use heg_sched::{Lane, RequestId, Ticket, WarmKernel};

/// A lane's report of a job.
pub(super) struct Report {
    pub(super) lane: Lane,
    pub(super) ticket: Ticket,
    pub(super) outcome: Result<Done, Failure>,
    /// Drafted tokens that were not run, since a grammar refuses them.
    pub(super) refused: Vec<(RequestId, u32)>,
    /// Time that it took, without that in which it waited for its turn.
    pub(super) took: Duration,
    /// Time in which engines of other models had the lane.
    pub(super) waited: Duration,
    /// The longest times of the lane so far.
    pub(super) longest: Longest,
}

impl Report {
    /// The loss of the lane's device, if it is lost: the lane can run nothing more.
    pub(super) fn loss(&self) -> Option<LaneLoss> {
        match &self.outcome {
            Err(failure) => match &failure.error {
                EngineError::Exec(error) => LaneLoss::of(error),
                _ => None,
            },
            Ok(_) => None,
        }
    }
}

/// The reason why a lane can run nothing more.
#[derive(Debug)]
pub(super) struct LaneLoss {
    /// Verdict on the lane's earlier results.
    pub(super) loss: Loss,
    pub(super) why: String,
}

impl LaneLoss {
    /// The loss of a device, if an error is one.
    pub(super) fn of(error: &ExecError) -> Option<Self> {
        error.loss().map(|loss| Self {
            loss,
            why: heg_exec::chain(error),
        })
    }

    /// A loss that says nothing of earlier results.
    pub(super) fn failed(why: String) -> Self {
        Self {
            loss: Loss::Failed,
            why,
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
    /// The vectors of prompts, each the whole answer of its request.
    pub(super) vectors: Vec<(RequestId, Vec<f32>)>,
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
