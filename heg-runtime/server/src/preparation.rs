//! Preparation: bodies are tokenized and grammars compiled on threads outside of the event loop, a bounded number at
//! once. Waiting clients take turns.
//!
//! Long work waits only for its like: small bodies never wait for a large one, nor any body for a grammar that takes
//! long to compile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::account::Scope;
use super::error::{ApiError, Result};

/// The places in which bodies are prepared.
#[derive(Debug)]
pub(super) struct Preparation {
    small: Places,
    large: Places,
    forms: Places,
}

/// Which of the places a preparation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Milliseconds: a body of up to [`SMALL_BYTES`].
    Small,
    /// More: a larger body.
    Large,
    /// Any amount: compiling a client's grammar.
    Form,
}

impl Effort {
    /// The effort of preparing a body of this size.
    pub(super) fn of(body_bytes: usize) -> Self {
        match body_bytes {
            0..=SMALL_BYTES => Self::Small,
            _ => Self::Large,
        }
    }
}

impl Default for Preparation {
    fn default() -> Self {
        Self {
            small: Places::new(SMALL_AT_ONCE),
            large: Places::new(1),
            forms: Places::new(1),
        }
    }
}

impl Preparation {
    /// Runs work on a thread of its own as soon as there is a place. A client that goes away gives up its wait; work
    /// that has begun runs to its end.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        scope: Scope,
        effort: Effort,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let places = match effort {
            Effort::Small => &self.small,
            Effort::Large => &self.large,
            Effort::Form => &self.forms,
        };
        let place = places.enter(scope).await?;
        super::route::blocking(move || {
            let outcome = work();
            drop(place);
            outcome
        })
        .await
    }
}

/// The places for work of one effort. Clients take turns: however much work of one client waits, the next place goes to
/// another client that waits too.
#[derive(Debug)]
struct Places {
    count: usize,
    free: Arc<Semaphore>,
    /// Tickets of each client that is here, one for each place, for running or being next.
    turns: Mutex<BTreeMap<Scope, Weak<Semaphore>>>,
}

impl Places {
    fn new(count: usize) -> Self {
        Self {
            count,
            free: Arc::new(Semaphore::new(count)),
            turns: Mutex::default(),
        }
    }

    async fn enter(&self, scope: Scope) -> Result<[OwnedSemaphorePermit; 2]> {
        let ending = |_| ApiError::ShuttingDown;
        let turn = self.turns(scope).acquire_owned().await.map_err(ending)?;
        let free = Arc::clone(&self.free).acquire_owned();
        Ok([turn, free.await.map_err(ending)?])
    }

    fn turns(&self, scope: Scope) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = turns.get(&scope).and_then(Weak::upgrade) {
            return turns;
        }
        turns.retain(|_, turns| turns.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.count));
        turns.insert(scope, Arc::downgrade(&new));
        new
    }
}

/// Size of the largest small body, in bytes. Chosen: it is tokenized in milliseconds.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// Number of small bodies at once. Chosen.
const SMALL_AT_ONCE: usize = 2;

/// Threads outside of the event loop: one for each place, and one for queries to the engine.
pub(super) const THREADS_MAX: usize = SMALL_AT_ONCE + 3;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    /// Work that lasts until the sender is dropped.
    fn endless(
        preparation: &Arc<Preparation>,
        scope: Scope,
        effort: Effort,
    ) -> (Sender<()>, JoinHandle<Result<bool>>) {
        let (end, ended) = channel();
        let preparation = Arc::clone(preparation);
        let work = tokio::spawn(async move {
            let work = move || Ok(ended.recv().is_err());
            preparation.run(scope, effort, work).await
        });
        (end, work)
    }

    /// A large body and a form that take for ever hold up their like, and nobody else.
    #[tokio::test]
    async fn what_takes_long_holds_up_its_like_only() {
        let preparation = Arc::new(Preparation::default());
        let efforts = [Effort::of(8 << 20), Effort::of(8 << 20), Effort::Form];
        let long = efforts.map(|effort| endless(&preparation, Scope::Loopback, effort));
        for place in 0..10 {
            let small = Effort::of(1000);
            let small = preparation.run(Scope::Loopback, small, move || Ok(place));
            assert_eq!(small.await.unwrap(), place);
        }
        assert_eq!(preparation.large.free.available_permits(), 0);
        for (end, work) in long {
            drop(end);
            assert!(work.await.unwrap().unwrap());
        }
    }

    #[tokio::test]
    async fn clients_take_turns() {
        let preparation = Arc::new(Preparation::default());
        let (end, first) = endless(&preparation, Scope::User(0), Effort::Form);
        let order = Arc::new(Mutex::new(Vec::new()));
        let form = |client: u32| {
            let (preparation, order) = (Arc::clone(&preparation), Arc::clone(&order));
            tokio::spawn(async move {
                let work = move || {
                    order.lock().unwrap().push(client);
                    Ok(())
                };
                preparation
                    .run(Scope::User(client), Effort::Form, work)
                    .await
            })
        };
        let waiting: Vec<_> = [0, 0, 0, 1].into_iter().map(form).collect();
        for _ in 0..100 {
            yield_now().await;
        }
        drop(end);
        first.await.unwrap().unwrap();
        for form in waiting {
            form.await.unwrap().unwrap();
        }
        assert_eq!(order.lock().unwrap().first(), Some(&1));
        preparation.forms.turns(Scope::Loopback);
        assert_eq!(
            preparation.forms.turns.lock().unwrap().len(),
            1,
            "clients who left are forgotten"
        );
    }
}
