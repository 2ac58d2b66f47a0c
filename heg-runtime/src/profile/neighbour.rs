//! A kernel that runs over and over on a thread of its own, for others to be measured beside it.

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
    /// Begins to run `call`; returns when the first runs are over, so that what follows meets it at full speed.
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

    /// Ends it and says why it ended early, if it did.
    pub(super) fn stop(mut self) -> Result<(), RuntimeError> {
        self.end().unwrap_or(Err(RuntimeError::LoaderGone))
    }

    /// None where the thread panicked.
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
