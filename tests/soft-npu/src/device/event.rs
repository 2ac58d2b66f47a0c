//! Events: flags that hosts and jobs set, clear and wait for (driver, `level_zero_driver/source/event.cpp`).

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::completion::{Deadline, deadline};
use crate::abi::{Code, NOT_READY, SUCCESS};
use crate::handles::Handles;
use crate::log::lock;

/// A flag.
#[derive(Debug, Default)]
pub(crate) struct Event {
    is_set: Mutex<bool>,
    changed: Condvar,
}

/// Events that callers hold.
pub(crate) static EVENTS: Handles<Event> = Handles::new();

impl Event {
    /// Sets or clears it.
    pub(crate) fn set(&self, to: EventState) {
        *lock(&self.is_set) = to == EventState::Signalled;
        self.changed.notify_all();
    }

    /// Waits until it is set; [`NOT_READY`] if that does not happen in time.
    pub(crate) fn wait(&self, timeout_ns: u64) -> Code {
        self.wait_until(deadline(timeout_ns))
    }

    fn wait_until(&self, until: Deadline) -> Code {
        let mut is_set = lock(&self.is_set);
        while !*is_set {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return NOT_READY;
            }
            let left = left.unwrap_or(Duration::from_secs(1));
            let waited = self.changed.wait_timeout(is_set, left);
            is_set = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        SUCCESS
    }
}

/// States of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventState {
    /// Set.
    Signalled,
    /// Not set.
    Cleared,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_ready_while_it_is_set() {
        let event = Event::default();
        assert_eq!(event.wait(0), NOT_READY);
        event.set(EventState::Signalled);
        assert_eq!(event.wait(u64::MAX), SUCCESS);
        event.set(EventState::Cleared);
        assert_eq!(event.wait(1000), NOT_READY);
    }
}
