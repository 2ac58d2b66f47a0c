//! The longest time for which a task held the event loop before it gave the loop back.
//!
//! All connections share one thread, so what one of them does there delays all others. Processor time is measured, not
//! wall time, which on a busy machine would include other programs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use super::platform::thread_time;

/// The longest processor time for which the event loop was held.
#[derive(Debug, Default)]
pub(super) struct Held {
    longest_us: AtomicU64,
}

/// A task whose turns on the event loop are measured.
pub(super) struct Measured<F> {
    task: Pin<Box<F>>,
    held: Arc<Held>,
}

impl Held {
    /// Returns the longest processor time so far.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }

    /// Wraps a task so that its turns on the event loop are measured.
    pub(super) fn measure<F: Future>(self: &Arc<Self>, task: F) -> Measured<F> {
        Measured {
            task: Box::pin(task),
            held: Arc::clone(self),
        }
    }
}

impl<F: Future> Future for Measured<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let begin = thread_time();
        let polled = self.task.as_mut().poll(context);
        let took = thread_time().saturating_sub(begin);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.held.longest_us.fetch_max(took_us, Ordering::Relaxed);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works for this much processor time of this thread.
    fn work(how_long: Duration) {
        let end = thread_time() + how_long;
        while thread_time() < end {}
    }

    #[tokio::test]
    async fn the_longest_turn_counts_and_not_the_waits_between() {
        let held = Arc::new(Held::default());
        let waits = held.measure(tokio::time::sleep(Duration::from_millis(300)));
        waits.await;
        assert!(held.longest() < Duration::from_millis(30));
        held.measure(async { work(Duration::from_millis(40)) })
            .await;
        assert!(held.longest() >= Duration::from_millis(40));
    }
}
