//! The end of the grace period: from then on, every open request is told that the server is shutting down.

use tokio::sync::watch;

/// Whether the grace period is over.
#[derive(Debug)]
pub(super) struct Closing(watch::Sender<bool>);

impl Default for Closing {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Closing {
    /// Ends the grace period.
    pub(super) fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the grace period is over.
    pub(super) async fn begun(&self) {
        // `self` holds the sender, so it cannot be closed.
        let _ = self.0.subscribe().wait_for(|is_over| *is_over).await;
    }
}
