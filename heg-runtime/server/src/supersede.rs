//! Superseding requests: of those with the same `supersede_key`, only the newest is answered.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::account::Scope;
use tokio::sync::oneshot::{self, error::TryRecvError};

/// A `supersede_key` with its client: the same text of another client is another key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) scope: Scope,
    pub(super) text: String,
}

/// The newest request of each key.
#[derive(Debug, Default)]
pub(super) struct Superseding {
    newest: Mutex<HashMap<Key, Newest>>,
    turns: AtomicU64,
}

#[derive(Debug)]
struct Newest {
    number: u64,
    /// Notified when a newer one arrives.
    turn: oneshot::Sender<()>,
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
    /// Begins the turn of a request, and ends that of the one before it.
    pub(super) fn begin(self: &Arc<Self>, key: Key) -> Turn {
        let (sender, turn) = oneshot::channel();
        let number = self.turns.fetch_add(1, Ordering::Relaxed);
        let entry = Newest {
            number,
            turn: sender,
        };
        if let Some(older) = self.lock().insert(key.clone(), entry) {
            // Its receiver may be gone: then it is over anyway.
            let _ = older.turn.send(());
        }
        Turn(Some(Keyed {
            superseding: Arc::clone(self),
            key,
            number,
            turn,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Newest>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Whether a newer request has come in.
    pub(super) fn is_over(&mut self) -> bool {
        let keyed = self.0.as_mut();
        keyed.is_some_and(|keyed| keyed.turn.try_recv() != Err(TryRecvError::Empty))
    }

    /// Waits for a newer request; forever without a key.
    pub(super) async fn passed(&mut self) {
        match &mut self.0 {
            Some(keyed) => drop((&mut keyed.turn).await),
            None => pending().await,
        }
    }
}

impl Drop for Keyed {
    fn drop(&mut self) {
        let mut newest = self.superseding.lock();
        if newest
            .get(&self.key)
            .is_some_and(|entry| entry.number == self.number)
        {
            newest.remove(&self.key);
        }
    }
}

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
        let begin = |text| superseding.begin(key(Scope::Loopback, text));
        let mut first = begin("a");
        let mut other = begin("b");
        assert!(!first.is_over());
        let mut second = begin("a");
        assert!(first.is_over() && !second.is_over() && !other.is_over());
        drop(first);
        let third = begin("a");
        assert!(second.is_over());
        drop((second, third, other));
        assert!(superseding.lock().is_empty());
        assert!(!Turn::default().is_over());
    }

    #[test]
    fn a_client_does_not_take_the_turn_of_another() {
        let superseding = Arc::new(Superseding::default());
        let mut ours = superseding.begin(key(Scope::Client(0), "a"));
        let theirs = superseding.begin(key(Scope::Client(1), "a"));
        assert!(!ours.is_over());
        drop(theirs);
        assert!(!ours.is_over());
        let _newer = superseding.begin(key(Scope::Client(0), "a"));
        assert!(ours.is_over());
    }
}
