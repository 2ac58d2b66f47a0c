//! A request in progress, as an iterator of its updates.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

use super::{Ending, Engine, Request, Update};
use crate::error::EngineError;
use heg_sched::RequestId;

/// A request that is being answered: iterate for its updates as they come. The last one is [`Update::Finished`],
/// unless the engine panics. Dropping a generation before that cancels its request.
pub struct Generation {
    engine: Engine,
    id: RequestId,
    updates: Receiver<Update>,
    is_over: bool,
}

impl Engine {
    /// Submits a request whose updates the caller wants to wait for.
    pub fn generate(&self, request: Request) -> Generation {
        let (sender, updates) = channel();
        // A dropped receiver means that the request is being cancelled.
        let id = self.submit(request, move |update| drop(sender.send(update)));
        Generation {
            engine: self.clone(),
            id,
            updates,
            is_over: false,
        }
    }
}

impl Generation {
    /// The engine's number of the request.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Asks the engine to stop; the last update still comes.
    pub fn cancel(&self) {
        self.engine.cancel(self.id);
    }

    /// Waits for the next update, at most for `patience`; `None` if it has not come.
    pub fn next_within(&mut self, patience: Duration) -> Option<Update> {
        match self.updates.recv_timeout(patience) {
            Ok(update) => Some(self.heard(update)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Returns the next update if it has come.
    pub fn try_next(&mut self) -> Option<Update> {
        match self.updates.try_recv() {
            Ok(update) => Some(self.heard(update)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Waits for the whole answer: the tokens that have not been taken yet, without log probabilities, and its
    /// ending.
    ///
    /// # Errors
    ///
    /// [`EngineError::EngineGone`] if the engine panicked. A request that failed is no error here: see
    /// [`Ending::finish`].
    pub fn wait(mut self) -> Result<(Vec<u32>, Ending), EngineError> {
        let mut tokens = Vec::new();
        for update in &mut self {
            match update {
                Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => {}
                Update::Token { id, .. } => tokens.push(id),
                Update::Finished(ending) => return Ok((tokens, ending)),
            }
        }
        Err(EngineError::EngineGone)
    }

    fn heard(&mut self, update: Update) -> Update {
        self.is_over = matches!(update, Update::Finished(_));
        update
    }
}

impl Iterator for Generation {
    type Item = Update;

    fn next(&mut self) -> Option<Update> {
        let update = self.updates.recv().ok()?;
        Some(self.heard(update))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.is_over {
            self.cancel();
        }
    }
}
