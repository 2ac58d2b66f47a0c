//! A kernel that runs in a loop on a thread of its own, while others are measured beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use heg_profiler::predict::CallShape;

use super::subject::Bench;
use crate::error::ExecError;

/// A device that a kernel keeps busy.
pub(super) struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), ExecError>>>,
}

impl Neighbour {
    /// Starts to run `call` in a loop; returns after the first runs, when it has reached full speed.
    pub(super) fn start(mut bench: Bench, call: CallShape) -> Result<Self, ExecError> {
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
    pub(super) fn stop(mut self) -> Result<(), ExecError> {
        self.end().unwrap_or(Err(ExecError::LoaderGone))
    }

    /// Joins the thread; `None` if it panicked.
    fn end(&mut self) -> Option<Result<(), ExecError>> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take() {
            Some(thread) => thread.join().ok(),
            None => Some(Ok(())),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Its outcome is not needed any more.
        let _ = self.end();
    }
}
