//! A kernel that runs in a loop on a thread of its own, while others are measured beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use heg_profiler::predict::CallShape;

use super::subject::Bench;
use crate::error::RuntimeError;

/// A busy device.
pub(super) struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), RuntimeError>>>,
}

impl Neighbour {
    /// Starts to run `call` in a loop; returns after the first runs, when it has reached full speed.
    pub(super) fn start(mut bench: Bench, call: CallShape) -> Result<Self, RuntimeError> {
        bench.run(call)?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                bench.run(call)?;
            }
            Ok(())
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the loop; returns the error if it ended early.
    pub(super) fn stop(mut self) -> Result<(), RuntimeError> {
        self.end().unwrap_or(Err(RuntimeError::LoaderGone))
    }

    /// Joins the thread; none if it panicked.
    fn end(&mut self) -> Option<Result<(), RuntimeError>> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take() {
            Some(thread) => thread.join().ok(),
            None => Some(Ok(())),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Nobody asks any more how it went.
        let _ = self.end();
    }
}
