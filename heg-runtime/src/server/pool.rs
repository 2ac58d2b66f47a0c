//! The places at a door: a bounded number of connections. Who has a place and asks nothing gives it up as soon as others
//! want it, the longest idle first; so nobody keeps others out by coming in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The places at one door.
#[derive(Debug)]
pub(super) struct Pool {
    places: Arc<Semaphore>,
    idle: Arc<Idle>,
}

/// Connections that ask nothing, the longest idle first.
#[derive(Debug, Default)]
struct Idle {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    by_turn: BTreeMap<u64, Arc<Notify>>,
    turns: u64,
}

/// A place, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    _place: OwnedSemaphorePermit,
    presence: Presence,
}

/// A connection among the others at its door.
#[derive(Debug, Clone)]
pub(super) struct Presence {
    idle: Arc<Idle>,
    /// Told that others want its place.
    wanted: Arc<Notify>,
    asking: Arc<Mutex<Asking>>,
}

/// Whether a connection asks something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Asking {
    /// It does, or nobody is there yet.
    #[default]
    Something,
    /// It does not, since this turn.
    Nothing(u64),
    /// It has ended.
    Gone,
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy(Presence);

impl Pool {
    pub(super) fn new(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            idle: Arc::default(),
        }
    }

    /// Waits for a place. Where none is free, the connection that has been idle for longest has to go.
    pub(super) async fn seat(&self) -> Seat {
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return Seat {
                    _place: place,
                    presence: Presence {
                        idle: Arc::clone(&self.idle),
                        wanted: Arc::default(),
                        asking: Arc::default(),
                    },
                };
            }
            self.idle.dismiss_longest();
            // It may have begun to ask something, and another one may have ended.
            let _ = timeout(PAUSE, self.places.acquire()).await;
        }
    }
}

impl Seat {
    /// Somebody sits down, and asks nothing yet.
    pub(super) fn take(&self) -> Presence {
        self.presence.rest();
        self.presence.clone()
    }

    /// Waits until others want the place, and nothing is asked from it.
    pub(super) async fn wanted(&self) {
        loop {
            self.presence.wanted.notified().await;
            if matches!(*self.presence.asking(), Asking::Nothing(_)) {
                return;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.presence.turn_to(Asking::Gone);
    }
}

impl Presence {
    /// Something is asked.
    pub(super) fn busy(&self) -> Busy {
        self.turn_to(Asking::Something);
        Busy(self.clone())
    }

    fn rest(&self) {
        let turn = self.idle.next_turn();
        self.turn_to(Asking::Nothing(turn));
    }

    fn turn_to(&self, next: Asking) {
        let mut waiting = self.idle.lock();
        let mut asking = self.asking();
        if let Asking::Nothing(turn) = *asking {
            waiting.by_turn.remove(&turn);
        }
        // The last response may be dropped after its connection.
        if *asking == Asking::Gone {
            return;
        }
        if let Asking::Nothing(turn) = next {
            waiting.by_turn.insert(turn, Arc::clone(&self.wanted));
        }
        *asking = next;
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.rest();
    }
}

impl Idle {
    fn next_turn(&self) -> u64 {
        let mut waiting = self.lock();
        waiting.turns += 1;
        waiting.turns
    }

    fn dismiss_longest(&self) {
        if let Some((_, wanted)) = self.lock().by_turn.pop_first() {
            wanted.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time before the next one has to go. Chosen.
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_waiting(work: impl Future) -> bool {
        timeout(Duration::from_millis(50), work).await.is_err()
    }

    #[tokio::test]
    async fn who_asks_nothing_gives_its_place_up_the_longest_idle_first() {
        let pool = Pool::new(3);
        let [first, second, third] = [pool.seat().await, pool.seat().await, pool.seat().await];
        let asks = first.take();
        let (_, _) = (second.take(), third.take());
        let busy = asks.busy();
        let leaving = async {
            second.wanted().await;
            drop(second);
        };
        let (fourth, ()) = tokio::join!(pool.seat(), leaving);
        assert!(is_waiting(first.wanted()).await && is_waiting(third.wanted()).await);
        // Nobody has to go who asks something.
        let (fourth, third) = (fourth.take().busy(), third.take().busy());
        assert!(is_waiting(pool.seat()).await);
        assert!(is_waiting(first.wanted()).await);
        drop(busy);
        let leaving = async {
            first.wanted().await;
            drop(first);
        };
        let (_seat, ()) = tokio::join!(pool.seat(), leaving);
        drop((fourth, third));
    }

    #[tokio::test]
    async fn a_response_that_outlives_its_connection_leaves_nothing() {
        let pool = Pool::new(1);
        let seat = pool.seat().await;
        let busy = seat.take().busy();
        drop(seat);
        drop(busy);
        assert!(pool.idle.lock().by_turn.is_empty());
    }
}
