//! The makers of an answer's masks: a thread of this process, or another process.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use llguidance::CancellationHandle;

use super::thread::{Ears, Said, Step};
use super::wire::{FrameLink, Silence};

/// The maker of an answer's masks.
pub(super) enum Maker {
    /// A thread of this process, which ends after its current mask.
    Thread {
        steps: Sender<Step>,
        said: Receiver<Said>,
        cancellation: CancellationHandle,
    },
    /// Another process, which ends when the link is dropped.
    Process(Box<dyn FrameLink>),
}

impl Maker {
    /// Sends a step to the maker. A maker that has ended is noticed by the next receive.
    pub(super) fn tell(&mut self, step: Step) {
        match self {
            Self::Thread { steps, .. } => drop(steps.send(step)),
            Self::Process(link) => drop(link.send(&step.to_bytes())),
        }
    }

    pub(super) fn hear(&mut self, wait: Duration) -> Result<Said, Silence> {
        match self {
            Self::Thread { said, .. } => said.recv_timeout(wait).map_err(|error| match error {
                RecvTimeoutError::Timeout => Silence::Late,
                RecvTimeoutError::Disconnected => Silence::Gone,
            }),
            Self::Process(link) => {
                let message = link.receive(Some(wait))?;
                Said::from_bytes(&message).ok_or(Silence::Gone)
            }
        }
    }

    /// Cancels the work under way.
    pub(super) fn cancel(&self) {
        if let Self::Thread { cancellation, .. } = self {
            cancellation.cancel();
        }
    }
}

/// The thread's side of its channels.
pub(super) struct Channels {
    pub(super) steps: Receiver<Step>,
    pub(super) saying: Sender<Said>,
}

impl Ears for Channels {
    fn next(&mut self) -> Option<Step> {
        self.steps.recv().ok()
    }

    fn say(&mut self, said: Said) -> Option<()> {
        self.saying.send(said).ok()
    }
}
