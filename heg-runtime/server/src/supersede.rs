//! Superseding requests: of those with the same `supersede_key`, only the one that arrived last is answered.
//!
//! A request arrives when its head is complete. Its key is in the body, and bodies are read and prepared at different
//! speeds, so an older request's key may be known after a newer one's; the older one is then given up. This holds even
//! after the newer one has ended, for as long as an older one may still come.

use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::account::Scope;
use super::error::{ApiError, Result};
use tokio::sync::oneshot::{self, error::TryRecvError};

/// A `supersede_key` with its client: the same text from another client is another key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) scope: Scope,
    pub(super) text: String,
}

/// The newest request of each key.
#[derive(Debug, Default)]
pub(super) struct Superseding(Mutex<Arrivals>);

#[derive(Debug, Default)]
struct Arrivals {
    /// Number of requests that have arrived.
    count: u64,
    /// The requests whose key is not known yet.
    unknown: BTreeSet<u64>,
    newest: HashMap<Key, Newest>,
    /// Number of keys in `newest` whose request has ended.
    ended: usize,
}

#[derive(Debug)]
struct Newest {
    number: u64,
    /// Notified when a newer request arrives; `None` once the request has ended.
    turn: Option<oneshot::Sender<()>>,
}

/// The place of a request in the order of arrival, held until its key is known.
#[derive(Debug)]
pub(super) struct Arrival {
    superseding: Arc<Superseding>,
    number: u64,
}

/// A request's turn, which lasts until a newer request with its key comes in.
#[derive(Debug, Default)]
pub(super) struct Turn(Option<Keyed>);

#[derive(Debug)]
struct Keyed {
    superseding: Arc<Superseding>,
    key: Key,
    number: u64,
    turn: oneshot::Receiver<()>,
}

impl Superseding {
    /// Notes that the head of a request is complete.
    pub(super) fn arrival(self: &Arc<Self>) -> Arrival {
        let mut arrivals = self.lock();
        let number = arrivals.count;
        arrivals.count += 1;
        arrivals.unknown.insert(number);
        Arrival {
            superseding: Arc::clone(self),
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arrivals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrival {
    /// Begins the turn of the request, and ends that of its predecessor.
    ///
    /// # Errors
    /// `Superseded`, if a request with this key has arrived since.
    pub(super) fn begin(&self, key: Key) -> Result<Turn> {
        let mut arrivals = self.superseding.lock();
        let newest = arrivals.newest.get(&key);
        if newest.is_some_and(|newest| newest.number > self.number) {
            return Err(ApiError::Superseded);
        }
        let (sender, turn) = oneshot::channel();
        let entry = Newest {
            number: self.number,
            turn: Some(sender),
        };
        match arrivals.newest.insert(key.clone(), entry) {
            // The predecessor's receiver may be gone; the predecessor is over anyway.
            Some(Newest {
                turn: Some(older), ..
            }) => drop(older.send(())),
            Some(Newest { turn: None, .. }) => arrivals.ended -= 1,
            None => {}
        }
        Ok(Turn(Some(Keyed {
            superseding: Arc::clone(&self.superseding),
            key,
            number: self.number,
            turn,
        })))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut arrivals = self.superseding.lock();
        arrivals.unknown.remove(&self.number);
        arrivals.forget();
    }
}

impl Arrivals {
    /// Forgets ended requests that no older one can meet any more.
    fn forget(&mut self) {
        if self.ended == 0 {
            return;
        }
        let oldest = self.unknown.first().copied().unwrap_or(self.count);
        let is_crowded = self.ended > ENDED_MAX;
        self.newest
            .retain(|_, newest| newest.turn.is_some() || (newest.number > oldest && !is_crowded));
        let ended = self.newest.values().filter(|newest| newest.turn.is_none());
        self.ended = ended.count();
    }
}

impl Turn {
    /// Returns whether a newer request with the same key has arrived.
    pub(super) fn is_over(&mut self) -> bool {
        let keyed = self.0.as_mut();
        keyed.is_some_and(|keyed| keyed.turn.try_recv() != Err(TryRecvError::Empty))
    }

    /// Waits for a newer request with the same key; forever if the request has no key.
    pub(super) async fn passed(&mut self) {
        match &mut self.0 {
            Some(keyed) => drop((&mut keyed.turn).await),
            None => pending().await,
        }
    }
}

impl Drop for Keyed {
    fn drop(&mut self) {
        let mut arrivals = self.superseding.lock();
        let has_older = arrivals
            .unknown
            .first()
            .is_some_and(|first| *first < self.number);
        let newest = arrivals.newest.get_mut(&self.key);
        let Some(newest) = newest.filter(|newest| newest.number == self.number) else {
            return;
        };
        if has_older {
            newest.turn = None;
            arrivals.ended += 1;
            if arrivals.ended > ENDED_MAX {
                arrivals.forget();
            }
        } else {
            arrivals.newest.remove(&self.key);
        }
    }
}

/// Maximum number of ended requests that are remembered because an older one may come. Chosen: more than anybody types
/// while a body arrives.
const ENDED_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scope: Scope, text: &str) -> Key {
        Key {
            scope,
            text: text.to_owned(),
        }
    }

    #[test]
    fn the_newest_of_a_key_has_its_turn() {
        let superseding = Arc::new(Superseding::default());
        let begin = |text| {
            superseding
                .arrival()
                .begin(key(Scope::Loopback, text))
                .unwrap()
        };
        let mut first = begin("a");
        let mut other = begin("b");
        assert!(!first.is_over());
        let mut second = begin("a");
        assert!(first.is_over() && !second.is_over() && !other.is_over());
        drop(first);
        let third = begin("a");
        assert!(second.is_over());
        drop((second, third, other));
        assert!(superseding.lock().newest.is_empty());
        assert!(!Turn::default().is_over());
    }

    #[test]
    fn a_client_does_not_take_the_turn_of_another() {
        let superseding = Arc::new(Superseding::default());
        let begin = |client| {
            let arrival = superseding.arrival();
            arrival.begin(key(Scope::Client(client), "a")).unwrap()
        };
        let mut ours = begin(0);
        let theirs = begin(1);
        assert!(!ours.is_over());
        drop(theirs);
        assert!(!ours.is_over());
        let _newer = begin(0);
        assert!(ours.is_over());
    }

    #[test]
    fn an_older_request_that_is_prepared_later_does_not_pass_a_newer_one() {
        let superseding = Arc::new(Superseding::default());
        let [older, between, newer] = [(); 3].map(|()| superseding.arrival());
        let key = || key(Scope::Loopback, "a");
        let mut turn = newer.begin(key()).unwrap();
        assert!(matches!(older.begin(key()), Err(ApiError::Superseded)));
        assert!(!turn.is_over());
        // Nor does the older request win when the newer one has been answered already.
        drop((older, newer, turn));
        assert!(matches!(between.begin(key()), Err(ApiError::Superseded)));
        drop(between);
        assert!(superseding.lock().newest.is_empty(), "nothing is kept");
        assert_eq!(superseding.lock().ended, 0);
        superseding.arrival().begin(key()).unwrap();
    }

    #[test]
    fn what_is_remembered_for_an_older_request_is_bounded() {
        let superseding = Arc::new(Superseding::default());
        let older = superseding.arrival();
        for number in 0..3 * ENDED_MAX {
            let key = key(Scope::Loopback, &number.to_string());
            drop(superseding.arrival().begin(key).unwrap());
            assert!(superseding.lock().newest.len() <= ENDED_MAX + 1);
        }
        drop(older);
        assert!(superseding.lock().newest.is_empty());
    }
}
