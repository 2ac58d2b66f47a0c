//! A thread that is joined with a time limit, since a driver may never return.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A running thread. It is detached when dropped.
pub(super) struct Thread {
    handle: JoinHandle<()>,
    /// Carries no messages; disconnects when the thread ends.
    alive: Receiver<()>,
}

/// Outcome of waiting for a thread's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Farewell {
    /// The thread has ended.
    Ended,
    /// The thread does not answer; it is left behind, with all that it holds.
    LeftBehind,
}

impl Thread {
    pub(super) fn start(work: impl FnOnce() + Send + 'static) -> Self {
        let (over, alive) = channel::<()>();
        let handle = thread::spawn(move || {
            let _over = over;
            work();
        });
        Self { handle, alive }
    }

    /// Waits for the thread's end, until `deadline`.
    pub(super) fn end(self, deadline: Instant) -> Farewell {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.alive.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => Farewell::LeftBehind,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                // The panic was reported before.
                let _ = self.handle.join();
                Farewell::Ended
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_does_not_end_is_left_behind() {
        let (release, wait) = channel::<()>();
        let stuck = Thread::start(move || {
            let _ = wait.recv();
        });
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(stuck.end(soon), Farewell::LeftBehind);
        drop(release);
        let later = || Instant::now() + Duration::from_secs(60);
        assert_eq!(Thread::start(|| ()).end(later()), Farewell::Ended);
        let panics = Thread::start(|| unreachable!("on purpose"));
        assert_eq!(panics.end(later()), Farewell::Ended);
    }
}
