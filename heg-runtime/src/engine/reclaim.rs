//! Memory that goes back to the system beside the conductor: to unmap the cache and the activations of a long prompt
//! takes milliseconds per 100 MB, in which no lane would get its next kernel.

use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Where large things go that nobody wants any more.
#[derive(Clone)]
pub(super) struct Reclaim(Sender<Box<dyn Send>>);

impl Reclaim {
    /// Starts the thread, which ends with the last handle.
    pub(super) fn start() -> Self {
        let (sender, unwanted) = channel();
        thread::spawn(move || unwanted.into_iter().for_each(drop));
        Self(sender)
    }

    pub(super) fn drop_later(&self, large: impl Send + 'static) {
        // The thread lives as long as this sender.
        let _ = self.0.send(Box::new(large));
    }
}
