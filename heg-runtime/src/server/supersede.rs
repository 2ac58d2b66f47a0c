//! Requests that take the place of older ones: of those with the same `supersede_key`, the newest is answered.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{self, error::TryRecvError};

/// The newest request of each key.
#[derive(Debug, Default)]
pub(super) struct Superseding {
    newest: Mutex<HashMap<String, Newest>>,
    turns: AtomicU64,
}

#[derive(Debug)]
struct Newest {
    number: u64,
    /// Told when a newer one comes.
    turn: oneshot::Sender<()>,
}

/// A request's turn, which lasts until a newer request with its key comes in.
#[derive(Debug, Default)]
pub(super) struct Turn(Option<Keyed>);

#[derive(Debug)]
struct Keyed {
    superseding: Arc<Superseding>,
    key: String,
    number: u64,
    turn: oneshot::Receiver<()>,
}

impl Superseding {
    /// Begins the turn of a request, and ends that of the one before it.
    pub(super) fn begin(self: &Arc<Self>, key: String) -> Turn {
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

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Newest>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Whether a newer request has come in.
    pub(super) fn is_over(&mut self) -> bool {
        let keyed = self.0.as_mut();
        keyed.is_some_and(|keyed| keyed.turn.try_recv() != Err(TryRecvError::Empty))
    }

    /// Waits for a newer request; for ever, without a key.
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

    #[test]
    fn the_newest_of_a_key_has_its_turn() {
        let superseding = Arc::new(Superseding::default());
        let mut first = superseding.begin("a".to_owned());
        let mut other = superseding.begin("b".to_owned());
        assert!(!first.is_over());
        let mut second = superseding.begin("a".to_owned());
        assert!(first.is_over() && !second.is_over() && !other.is_over());
        drop(first);
        let third = superseding.begin("a".to_owned());
        assert!(second.is_over());
        drop((second, third, other));
        assert!(superseding.lock().is_empty());
        assert!(!Turn::default().is_over());
    }
}
