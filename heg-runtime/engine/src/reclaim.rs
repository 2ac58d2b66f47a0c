//! Frees large memory on a thread of its own: unmapping the cache and the activations of a long prompt takes
//! milliseconds per 100 MB, during which the conductor could give no lane its next kernel.

use std::sync::mpsc::{Sender, channel};
use std::thread;

/// A handle of the thread that drops large values.
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
