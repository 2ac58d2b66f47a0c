//! The connections of a listener: a bounded number of slots. When all are taken, idle connections are closed for new
//! ones, the longest idle first: nobody keeps others out by connecting.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The slots of one listener.
#[derive(Debug)]
pub(super) struct Pool {
    slots: Arc<Semaphore>,
    idle: Arc<Idle>,
}

/// Idle connections, the longest idle first.
#[derive(Debug, Default)]
struct Idle {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    by_turn: BTreeMap<u64, Arc<Notify>>,
    turns: u64,
}

/// A slot, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    activity: Activity,
}

/// Whether a connection is busy or idle, as its listener knows it.
#[derive(Debug, Clone)]
pub(super) struct Activity {
    idle: Arc<Idle>,
    /// Notified when its slot is needed.
    evicted: Arc<Notify>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// A request is under way, or nobody has connected yet.
    #[default]
    Busy,
    /// Idle since this turn of the queue.
    Idle(u64),
    /// The connection has ended.
    Ended,
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy(Activity);

impl Pool {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(slots)),
            idle: Arc::default(),
        }
    }

    /// Waits for a slot. If none is free, closes the connection that has been idle the longest.
    pub(super) async fn slot(&self) -> Slot {
        loop {
            if let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
                return Slot {
                    _permit: permit,
                    activity: Activity {
                        idle: Arc::clone(&self.idle),
                        evicted: Arc::default(),
                        state: Arc::default(),
                    },
                };
            }
            self.idle.evict_longest_idle();
            // That one may have got a request just now.
            let _ = timeout(PAUSE, self.slots.acquire()).await;
        }
    }
}

impl Slot {
    /// A client has connected, and has sent no request yet.
    pub(super) fn occupy(&self) -> Activity {
        self.activity.set_idle();
        self.activity.clone()
    }

    /// Waits until the slot is needed while no request is under way.
    pub(super) async fn evicted(&self) {
        loop {
            self.activity.evicted.notified().await;
            if matches!(*self.activity.state(), State::Idle(_)) {
                return;
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.activity.set(State::Ended);
    }
}

impl Activity {
    /// Marks a request as under way until the guard is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.set(State::Busy);
        Busy(self.clone())
    }

    fn set_idle(&self) {
        let turn = self.idle.next_turn();
        self.set(State::Idle(turn));
    }

    fn set(&self, next: State) {
        let mut queue = self.idle.lock();
        let mut state = self.state();
        if let State::Idle(turn) = *state {
            queue.by_turn.remove(&turn);
        }
        // The last response may be dropped after its connection.
        if *state == State::Ended {
            return;
        }
        if let State::Idle(turn) = next {
            queue.by_turn.insert(turn, Arc::clone(&self.evicted));
        }
        *state = next;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set_idle();
    }
}

impl Idle {
    fn next_turn(&self) -> u64 {
        let mut queue = self.lock();
        queue.turns += 1;
        queue.turns
    }

    fn evict_longest_idle(&self) {
        if let Some((_, evicted)) = self.lock().by_turn.pop_first() {
            evicted.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time before the next one is evicted. Chosen.
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_waiting(work: impl Future) -> bool {
        timeout(Duration::from_millis(50), work).await.is_err()
    }

    #[tokio::test]
    async fn idle_connections_are_evicted_the_longest_idle_first() {
        let pool = Pool::new(3);
        let [first, second, third] = [pool.slot().await, pool.slot().await, pool.slot().await];
        let activity = first.occupy();
        let (_, _) = (second.occupy(), third.occupy());
        let busy = activity.busy();
        let leaving = async {
            second.evicted().await;
            drop(second);
        };
        let (fourth, ()) = tokio::join!(pool.slot(), leaving);
        assert!(is_waiting(first.evicted()).await && is_waiting(third.evicted()).await);
        // None is evicted that has a request.
        let (fourth, third) = (fourth.occupy().busy(), third.occupy().busy());
        assert!(is_waiting(pool.slot()).await);
        assert!(is_waiting(first.evicted()).await);
        drop(busy);
        let leaving = async {
            first.evicted().await;
            drop(first);
        };
        let (_slot, ()) = tokio::join!(pool.slot(), leaving);
        drop((fourth, third));
    }

    #[tokio::test]
    async fn a_response_that_outlives_its_connection_leaves_nothing() {
        let pool = Pool::new(1);
        let slot = pool.slot().await;
        let busy = slot.occupy().busy();
        drop(slot);
        drop(busy);
        assert!(pool.idle.lock().by_turn.is_empty());
    }
}
