//! Preparation of bodies on threads off the event loop, a bounded number at once. The threads also wait for the
//! processes that make prompts and compile forms. Waiting clients take turns.
//!
//! Long work delays only its own kind: a small body never waits for a large one, and no body waits for a form that
//! takes long to compile. A form waits for those of its own client, unless several clients compile long forms at the
//! same time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use std::time::Instant;

use heg_confine::{Leash, Wait};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::account::Scope;
use super::error::{ApiError, Result};

/// The places in which bodies are prepared.
#[derive(Debug)]
pub(super) struct Preparation {
    small: Places,
    large: Places,
    forms: Places,
}

/// The effort of a preparation, which decides the places that it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Milliseconds: a body of up to [`SMALL_BYTES`].
    Small,
    /// More: a larger body.
    Large,
    /// Seconds: compiling a client's form.
    Form,
}

impl Effort {
    /// Returns the effort of preparing a body of this size.
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
            small: Places::new(SMALL_AT_ONCE, SMALL_AT_ONCE),
            large: Places::new(1, 1),
            forms: Places::new(FORMS_AT_ONCE, 1),
        }
    }
}

impl Preparation {
    /// Runs work on another thread as soon as there is a place. A client that goes away gives up its wait; work that
    /// has begun runs to its end.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        scope: Scope,
        effort: Effort,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_until(scope, effort, None, |_| work()).await
    }

    /// Runs work that other processes do, on a thread that waits for them. The processes end if the client goes away or
    /// the deadline passes.
    ///
    /// # Errors
    /// `Deadline`, if it passes before there is a place; and those of the work.
    pub(super) async fn run_until<T: Send + 'static>(
        &self,
        scope: Scope,
        effort: Effort,
        deadline: Option<Instant>,
        work: impl FnOnce(Wait<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let places = match effort {
            Effort::Small => &self.small,
            Effort::Large => &self.large,
            Effort::Form => &self.forms,
        };
        let place = match deadline {
            None => places.enter(scope).await?,
            Some(deadline) => {
                let place = timeout_at(deadline.into(), places.enter(scope)).await;
                place.map_err(|_| ApiError::Deadline)??
            }
        };
        let hold = Hold(Arc::default());
        let leash = Arc::clone(&hold.0);
        let outcome = super::route::blocking(move || {
            let outcome = work(Wait {
                deadline,
                leash: Some(&leash),
            });
            drop(place);
            outcome
        });
        outcome.await
    }
}

/// A client's hold on the processes that work for it: dropping it ends them.
struct Hold(Arc<Leash>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The places for work of one effort. Clients take turns: however much work of one client waits, the next place goes to
/// another client that waits too.
#[derive(Debug)]
struct Places {
    /// Maximum number of places of one client.
    each: usize,
    free: Arc<Semaphore>,
    /// Tickets of each present client, one for each place that it may have, to run or to be next in line.
    turns: Mutex<BTreeMap<Scope, Weak<Semaphore>>>,
}

impl Places {
    fn new(count: usize, each: usize) -> Self {
        Self {
            each,
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
        let new = Arc::new(Semaphore::new(self.each));
        turns.insert(scope, Arc::downgrade(&new));
        new
    }
}

/// Size of the largest small body, in bytes. Chosen: it is tokenized in milliseconds.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// Number of small bodies at once. Chosen.
const SMALL_AT_ONCE: usize = 2;

/// Number of forms that are compiled at once, each of another client. Chosen: each may take 64 MiB, and a core that
/// nothing else needs.
const FORMS_AT_ONCE: usize = 4;

/// Number of threads off the event loop: one for each place, and one for queries to the engine.
pub(super) const THREADS_MAX: usize = SMALL_AT_ONCE + FORMS_AT_ONCE + 2;

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

    /// A large body and a form that take for ever delay only their own kind.
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

    /// A client whose form takes for ever holds up its own forms, and a deadline ends their wait.
    #[tokio::test]
    async fn forms_of_others_go_on() {
        let preparation = Arc::new(Preparation::default());
        let (end, first) = endless(&preparation, Scope::User(0), Effort::Form);
        yield_now().await;
        let form = |client, deadline| {
            preparation.run_until(Scope::User(client), Effort::Form, deadline, |_| Ok(()))
        };
        form(1, None).await.unwrap();
        let soon = Some(Instant::now() + std::time::Duration::from_millis(20));
        let late = form(0, soon).await;
        assert!(matches!(late, Err(ApiError::Deadline)), "{late:?}");
        drop(end);
        assert!(first.await.unwrap().unwrap());
        form(
            0,
            soon.map(|_| Instant::now() + std::time::Duration::from_secs(60)),
        )
        .await
        .unwrap();
    }

    /// A client that goes away takes its processes with it.
    #[tokio::test]
    async fn work_of_clients_that_are_gone_is_ended() {
        let preparation = Preparation::default();
        let (say, said) = channel();
        let work = preparation.run_until(Scope::Loopback, Effort::Form, None, move |wait| {
            while !wait.leash.is_some_and(Leash::is_ended) {
                std::thread::yield_now();
            }
            let _ = say.send(());
            Ok(())
        });
        let gone = tokio::time::timeout(std::time::Duration::from_millis(20), work).await;
        assert!(gone.is_err());
        assert_eq!(said.recv(), Ok(()));
    }

    #[tokio::test]
    async fn clients_take_turns() {
        let preparation = Arc::new(Preparation::default());
        let (end, first) = endless(&preparation, Scope::User(0), Effort::Large);
        let order = Arc::new(Mutex::new(Vec::new()));
        let form = |client: u32| {
            let (preparation, order) = (Arc::clone(&preparation), Arc::clone(&order));
            tokio::spawn(async move {
                let work = move || {
                    order.lock().unwrap().push(client);
                    Ok(())
                };
                preparation
                    .run(Scope::User(client), Effort::Large, work)
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
        preparation.large.turns(Scope::Loopback);
        assert_eq!(
            preparation.large.turns.lock().unwrap().len(),
            1,
            "clients who left are forgotten"
        );
    }
}
