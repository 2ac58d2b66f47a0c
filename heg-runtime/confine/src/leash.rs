//! Ends work on another thread when its sender is gone, or at its deadline.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use heg_text::{Silence, TextError};

use crate::error::Confined;

/// A handle to the work of one request, through which another thread can end it.
#[derive(Debug, Default)]
pub struct Leash(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    is_ended: bool,
    /// The connection to the process that works now.
    socket: Option<UnixStream>,
}

impl Leash {
    /// Ends the work for good.
    pub fn end(&self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.is_ended = true;
        if let Some(socket) = held.socket.take() {
            // The keeper notices it, and kills the process.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns whether the work was ended.
    pub fn is_ended(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_ended
    }

    /// Attaches the process at the other end of a socket.
    fn hold(&self, socket: &UnixStream) -> Result<(), Confined> {
        let socket = socket.try_clone().map_err(Confined::lost)?;
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_ended {
            return Err(Confined::Gone);
        }
        held.socket = Some(socket);
        Ok(())
    }

    /// Detaches the process, which from here on works for nobody, or for another request.
    fn release(&self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.socket = None;
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
        socket: &UnixStream,
        work: impl FnOnce() -> Result<T, Confined>,
    ) -> Result<T, Confined> {
        let Some(leash) = self.leash else {
            return work();
        };
        leash.hold(socket)?;
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
