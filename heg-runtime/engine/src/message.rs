//! Messages to the conductor, and requests on their way to it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use super::drafts::RequestDrafts;
use super::prefix::PrefixRows;
use super::report::{LaneLoss, Report, Warmed};
use super::request::{Listener, Request, ScopeId, refuse};
use super::status::Status;
use crate::error::EngineError;
use heg_draft::{History, Likely};
use heg_sched::{Event, Finish, FlowId, Lane, RequestId};

/// A message to the conductor.
pub(super) enum Message {
    Submit(Box<Arrival>),
    Cancel(RequestId),
    EndFlow(FlowId),
    /// Earlier answers of a scope.
    Recall(ScopeId, History),
    Ready(Lane, Result<(), EngineError>),
    /// A lane's thread has ended before its time, with the reason.
    Lost(Lane, LaneLoss),
    Done(Report),
    /// The outcome of a cache's transfer to flash.
    Transferred(Event),
    /// The tokens that a lane found likely in a prompt, from a position on.
    Calibrated((RequestId, u32), Result<Vec<Likely>, EngineError>),
    Warmed(Warmed),
    Status(Sender<Status>),
    WaitReady(Sender<Result<(), EngineError>>),
    Shutdown,
}

/// A request that was submitted.
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) id: RequestId,
    pub(super) request: Request,
    /// The drafts of its answer, if it is drafted.
    pub(super) drafts: Option<Box<RequestDrafts>>,
    pub(super) listener: Listener,
    /// The kept prefix of its prompt, if there is one.
    pub(super) kept: Option<PrefixRows>,
}

impl Arrival {
    /// Time after which its answer is of no use; `None` if it has no deadline, or the clock does not reach it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.at.checked_add(self.request.deadline?)
    }

    /// Tells its listener that it will not run, with the reason.
    pub(super) fn refuse(self, finish: Finish, error: Option<Arc<EngineError>>) {
        refuse(self.listener, finish, error);
    }
}

/// Waits for the next message until `deadline`.
pub(super) fn receive(
    messages: &Receiver<Message>,
    deadline: Option<Instant>,
) -> Result<Message, RecvTimeoutError> {
    match deadline {
        None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(at) => messages.recv_timeout(at.saturating_duration_since(Instant::now())),
    }
}

/// Refuses a message to an engine that has stopped. The sender of one that has no such answer finds its channel closed.
pub(super) fn turn_away(message: Message) {
    match message {
        Message::Submit(arrival) => {
            arrival.refuse(Finish::Failed, Some(Arc::new(EngineError::EngineStopped)));
        }
        Message::WaitReady(answer) => drop(answer.send(Err(EngineError::EngineStopped))),
        _ => {}
    }
}
