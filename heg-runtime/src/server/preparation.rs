//! Preparation: bodies become tokens, and forms grammars, on threads beside the event loop, a bounded number of them at
//! once. Those that wait do so in order.
//!
//! What takes long waits for its like only: small bodies never stand behind a large one, nor any body behind a form
//! that takes long to compile.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::error::{ApiError, Result};

/// The places where bodies are prepared.
#[derive(Debug)]
pub(super) struct Preparation {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    forms: Arc<Semaphore>,
}

/// What a preparation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Milliseconds: a body of up to [`SMALL_BYTES`].
    Small,
    /// More: a larger body.
    Large,
    /// What a stranger's form takes.
    Form,
}

impl Effort {
    /// What a body of so many bytes takes.
    pub(super) fn of(body_bytes: usize) -> Self {
        match body_bytes {
            0..=SMALL_BYTES => Self::Small,
            _ => Self::Large,
        }
    }
}

impl Default for Preparation {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            small: places(SMALL_AT_ONCE),
            large: places(1),
            forms: places(1),
        }
    }
}

impl Preparation {
    /// Works on a thread of its own, as soon as there is a place. A client that goes away gives up waiting; work that
    /// has begun is ended first.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        effort: Effort,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let places = match effort {
            Effort::Small => &self.small,
            Effort::Large => &self.large,
            Effort::Form => &self.forms,
        };
        let place = Arc::clone(places).acquire_owned().await;
        let place = place.map_err(|_| ApiError::ShuttingDown)?;
        super::route::blocking(move || {
            let outcome = work();
            drop(place);
            outcome
        })
        .await
    }
}

/// Bytes of a small body. Chosen: its tokens are there in milliseconds.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// Small bodies at once. Chosen: as many as there were threads for all bodies.
const SMALL_AT_ONCE: usize = 2;

/// Threads beside the event loop: for all places, and one for questions to the engine.
pub(super) const THREADS_MAX: usize = SMALL_AT_ONCE + 3;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A large body and a form that take for ever hold up their like, and nobody else.
    #[tokio::test]
    async fn what_takes_long_holds_up_its_like_only() {
        let preparation = Arc::new(Preparation::default());
        let mut ends = Vec::new();
        let mut long = Vec::new();
        for effort in [Effort::of(8 << 20), Effort::of(8 << 20), Effort::Form] {
            let (end, ended) = channel::<()>();
            let preparation = Arc::clone(&preparation);
            long.push(tokio::spawn(async move {
                let work = move || Ok(ended.recv().is_err());
                preparation.run(effort, work).await
            }));
            ends.push(end);
        }
        for place in 0..10 {
            let small = preparation.run(Effort::of(1000), move || Ok(place));
            assert_eq!(small.await.unwrap(), place);
        }
        assert_eq!(preparation.large.available_permits(), 0);
        drop(ends);
        for work in long {
            work.await.unwrap().unwrap();
        }
    }
}
