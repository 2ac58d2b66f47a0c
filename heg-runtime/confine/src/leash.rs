//! Ends work on another thread when its sender is gone, or at its deadline.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use heg_text::{Silence, TextError};

use crate::error::Confined;
use crate::platform::Collar;

/// A handle to the work of one request, through which another thread can end it.
#[derive(Debug, Default)]
pub struct Leash(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    is_ended: bool,
    /// A handle that ends the process at work.
    collar: Option<Collar>,
}

impl Leash {
    /// Ends the work for good.
    pub fn end(&self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.is_ended = true;
        if let Some(collar) = held.collar.take() {
            collar.end();
        }
    }

    /// Returns whether the work was ended.
    pub fn is_ended(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_ended
    }

    /// Attaches a process.
    fn hold(&self, collar: Collar) -> Result<(), Confined> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_ended {
            return Err(Confined::Gone);
        }
        held.collar = Some(collar);
        Ok(())
    }

    /// Detaches the process, which from here on works for nobody, or for another request.
    fn release(&self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.collar = None;
    }
}

/// The limits of a wait for work: its deadline and its leash.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wait<'a> {
    /// The time after which nobody wants the result.
    pub deadline: Option<Instant>,
    /// The leash of the caller who wants the result.
    pub leash: Option<&'a Leash>,
}

impl Wait<'_> {
    /// Works with a process while it is attached to the leash.
    pub(crate) fn holding<T>(
        &self,
        collar: Collar,
        work: impl FnOnce() -> Result<T, Confined>,
    ) -> Result<T, Confined> {
        let Some(leash) = self.leash else {
            return work();
        };
        leash.hold(collar)?;
        let outcome = work();
        leash.release();
        match leash.is_ended() {
            true => Err(Confined::Gone),
            false => outcome,
        }
    }

    /// Returns the end of a wait that is also bounded by `own`.
    pub(crate) fn until(&self, own: Instant) -> Instant {
        self.deadline.map_or(own, |deadline| deadline.min(own))
    }

    /// Returns the error for work that gave no result. `refusal` makes the error for an input that exceeds a limit.
    pub(crate) fn failure(
        &self,
        silence: Silence,
        refusal: impl FnOnce(&str) -> TextError,
    ) -> Confined {
        let is_over = self
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now());
        match silence {
            Silence::Late if is_over => Confined::Deadline,
            Silence::Late => Confined::Refused(refusal("it takes too long")),
            Silence::Ended { why } => Confined::Refused(refusal(why)),
            Silence::Gone => Confined::lost("the process that worked on this went away"),
        }
    }
}
