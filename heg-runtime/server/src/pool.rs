//! The slots for connections of one listener. If all are taken, a newcomer gets the slot of the connection that has
//! been idle the longest, so nobody can keep others out by connecting.
//!
//! If clients are told apart by tokens, a connection belongs to the client of its last request. Each client has a part
//! of the slots that the others cannot take. Connections that have shown no token share a bounded part, and are closed
//! first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::account::Scope;
use super::error::{ApiError, Result};
use super::share::{Bounds, Shares};

/// The slots of one listener.
#[derive(Debug)]
pub(super) struct Pool {
    slots: Arc<Semaphore>,
    open: Arc<Open>,
}

/// The open connections.
#[derive(Debug)]
struct Open {
    queues: Mutex<Queues>,
}

#[derive(Debug)]
struct Queues {
    turns: u64,
    /// Idle connections, the longest idle first.
    idle: BTreeMap<u64, Arc<Connected>>,
    /// The clients' shares of the slots; `None` if all are one client.
    shares: Option<SlotShares>,
}

#[derive(Debug)]
struct SlotShares {
    by_client: Shares,
    /// Connections that have shown no token, the oldest first.
    unknown: BTreeMap<u64, Arc<Connected>>,
    unknown_max: usize,
}

/// A connection, as its listener knows it.
#[derive(Debug, Default)]
struct Connected {
    /// Notified when its slot is needed.
    evicted: Notify,
    place: Mutex<Place>,
}

#[derive(Debug, Default)]
struct Place {
    state: State,
    owner: Owner,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// A request is under way, or the slot has no connection yet.
    #[default]
    Busy,
    /// Idle since this turn of the queue.
    Idle(u64),
    /// The connection has ended.
    Ended,
}

/// The owner of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Owner {
    /// No particular client: all are one client, or the slot was given to another connection already.
    #[default]
    Nobody,
    /// A connection that has shown no token, since this turn.
    Unknown(u64),
    /// A client.
    Client(Scope),
}

/// A slot, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    activity: Activity,
}

/// The state of a connection, busy or idle, and its owner.
#[derive(Debug, Clone)]
pub(super) struct Activity {
    open: Arc<Open>,
    connected: Arc<Connected>,
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy(Activity);

impl Pool {
    /// Slots that all belong to one client.
    pub(super) fn new(slots: usize) -> Self {
        Self::with(slots, None)
    }

    /// Slots that clients share.
    pub(super) fn shared(slots: usize) -> Self {
        let bounds = Bounds {
            own: (slots / OWN_PART).max(1),
            each_max: slots,
            common_max: (slots / COMMON_PART).max(1),
        };
        let shares = SlotShares {
            by_client: Shares::new(bounds),
            unknown: BTreeMap::new(),
            unknown_max: (slots / UNKNOWN_PART).max(1),
        };
        Self::with(slots, Some(shares))
    }

    fn with(slots: usize, shares: Option<SlotShares>) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(slots)),
            open: Arc::new(Open {
                queues: Mutex::new(Queues {
                    turns: 0,
                    idle: BTreeMap::new(),
                    shares,
                }),
            }),
        }
    }

    /// Waits for a slot. If none is free, closes the connection that is missed the least.
    pub(super) async fn slot(&self) -> Slot {
        loop {
            if let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
                return Slot {
                    _permit: permit,
                    activity: Activity {
                        open: Arc::clone(&self.open),
                        connected: Arc::default(),
                    },
                };
            }
            self.open.lock().evict();
            // The chosen connection may just have received a request.
            let _ = timeout(PAUSE, self.slots.acquire()).await;
        }
    }
}

impl Slot {
    /// Marks the slot as connected, without a request yet.
    pub(super) fn occupy(&self) -> Activity {
        let Activity { open, connected } = &self.activity;
        let mut queues = open.lock();
        let turn = queues.next_turn();
        if let Some(shares) = &mut queues.shares {
            connected.place().owner = Owner::Unknown(turn);
            shares.unknown.insert(turn, Arc::clone(connected));
            if shares.unknown.len() > shares.unknown_max {
                shares.evict_unknown();
            }
        }
        queues.set(connected, State::Idle(turn));
        drop(queues);
        self.activity.clone()
    }

    /// Waits until the slot is needed while the connection has no request under way, or none with a token.
    pub(super) async fn evicted(&self) {
        let connected = &self.activity.connected;
        loop {
            connected.evicted.notified().await;
            let place = connected.place();
            let is_unknown = matches!(place.owner, Owner::Unknown(_));
            if is_unknown || matches!(place.state, State::Idle(_)) {
                return;
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Activity { open, connected } = &self.activity;
        let mut queues = open.lock();
        queues.set(connected, State::Ended);
        queues.disown(connected);
    }
}

impl Activity {
    /// Marks a request as under way until the guard is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.open.lock().set(&self.connected, State::Busy);
        Busy(self.clone())
    }

    /// Assigns the slot to the client that sent the request.
    ///
    /// # Errors
    /// `Connections`, if the client has its share and all its connections are busy.
    pub(super) fn belongs_to(&self, scope: Scope) -> Result<()> {
        let connected = &self.connected;
        let mut queues = self.open.lock();
        if connected.place().owner == Owner::Client(scope) {
            return Ok(());
        }
        let Some(shares) = &mut queues.shares else {
            return Ok(());
        };
        if shares.by_client.give(scope, 1).is_err() {
            let open = shares.by_client.of(scope);
            let replaced = queues.evict_idle_of(scope);
            let shares = queues.shares.as_mut().filter(|_| replaced);
            let given = shares.map(|shares| shares.by_client.give(scope, 1));
            if !matches!(given, Some(Ok(()))) {
                return Err(ApiError::Connections { open });
            }
        }
        queues.disown(connected);
        connected.place().owner = Owner::Client(scope);
        Ok(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Activity { open, connected } = &self.0;
        let mut queues = open.lock();
        let turn = queues.next_turn();
        queues.set(connected, State::Idle(turn));
    }
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connected {
    /// Lock order: after the queues.
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    fn set(&mut self, connected: &Arc<Connected>, next: State) {
        let mut place = connected.place();
        if let State::Idle(turn) = place.state {
            self.idle.remove(&turn);
        }
        // The last response may be dropped after its connection.
        if place.state == State::Ended {
            return;
        }
        if let State::Idle(turn) = next {
            self.idle.insert(turn, Arc::clone(connected));
        }
        place.state = next;
    }

    /// Takes the slot from its owner.
    fn disown(&mut self, connected: &Connected) {
        let owner = std::mem::take(&mut connected.place().owner);
        let Some(shares) = &mut self.shares else {
            return;
        };
        match owner {
            Owner::Nobody => {}
            Owner::Unknown(turn) => drop(shares.unknown.remove(&turn)),
            Owner::Client(scope) => shares.by_client.take_back(scope, 1),
        }
    }

    /// Closes the oldest connection that has shown no token or, if there is none, the one that has been idle the
    /// longest.
    fn evict(&mut self) {
        if let Some(shares) = &mut self.shares
            && shares.evict_unknown()
        {
            return;
        }
        if let Some((_, connected)) = self.idle.pop_first() {
            connected.evicted.notify_one();
        }
    }

    /// Closes the client's connection that has been idle the longest; false if none is idle.
    fn evict_idle_of(&mut self, scope: Scope) -> bool {
        let is_its = |connected: &Connected| connected.place().owner == Owner::Client(scope);
        let longest = self.idle.iter().find(|(_, connected)| is_its(connected));
        let Some((&turn, _)) = longest else {
            return false;
        };
        let Some(connected) = self.idle.remove(&turn) else {
            return false;
        };
        self.disown(&connected);
        connected.evicted.notify_one();
        true
    }
}

impl SlotShares {
    /// Closes the oldest connection that has shown no token; false if there is none.
    fn evict_unknown(&mut self) -> bool {
        let Some((_, connected)) = self.unknown.pop_first() else {
            return false;
        };
        connected.evicted.notify_one();
        true
    }
}

/// The reserved part of each client, as a divisor of all slots. Chosen.
const OWN_PART: usize = 32;

/// The clients' common part, beyond their reserved parts, as a divisor of all slots. Chosen: the rest holds the
/// reserved parts of a dozen clients.
const COMMON_PART: usize = 2;

/// The part of connections that have shown no token, as a divisor of all slots. Chosen.
const UNKNOWN_PART: usize = 8;

/// Time before the next connection is evicted. Chosen.
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
        // A connection with a request is not evicted.
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
        assert!(pool.open.lock().idle.is_empty());
    }

    fn client(slot: &Slot, client: u32) -> Result<Busy> {
        let activity = slot.occupy();
        let busy = activity.busy();
        activity.belongs_to(Scope::Client(client))?;
        Ok(busy)
    }

    #[tokio::test]
    async fn two_clients_leave_slots_for_others() {
        const SLOTS: usize = 64;
        let pool = Pool::shared(SLOTS);
        let mut kept = Vec::new();
        for greedy in [0, 1] {
            loop {
                let slot = pool.slot().await;
                match client(&slot, greedy) {
                    Ok(busy) => kept.push((slot, busy)),
                    Err(error) => {
                        assert!(matches!(error, ApiError::Connections { .. }));
                        break;
                    }
                }
            }
        }
        assert_eq!(kept.len(), SLOTS / COMMON_PART + 2 * SLOTS / OWN_PART);
        // Connections without a token have a bounded part, and the oldest of them is closed first.
        let mut strangers = Vec::new();
        for _ in 0..SLOTS / UNKNOWN_PART {
            let slot = pool.slot().await;
            strangers.push((slot.occupy(), slot));
        }
        assert!(is_waiting(strangers[0].1.evicted()).await);
        let slot = pool.slot().await;
        slot.occupy();
        assert!(!is_waiting(strangers[0].1.evicted()).await);
        assert!(is_waiting(strangers[1].1.evicted()).await);
        // Others have their own parts.
        for other in 2..6 {
            let slot = pool.slot().await;
            let busy = client(&slot, other).unwrap();
            kept.push((slot, busy));
        }
        drop(kept);
        let queues = pool.open.lock();
        let shares = queues.shares.as_ref().unwrap();
        assert_eq!(shares.by_client.total(), 0);
    }

    #[tokio::test]
    async fn a_client_that_has_its_share_loses_its_own_idle_connection() {
        let pool = Pool::shared(4);
        let mut all = Vec::new();
        for _ in 0..3 {
            let slot = pool.slot().await;
            let busy = client(&slot, 0).unwrap();
            all.push((busy, slot));
        }
        let slot = pool.slot().await;
        assert!(client(&slot, 0).is_err(), "all are busy");
        let (busy, idle) = all.remove(1);
        drop(busy);
        assert!(client(&slot, 0).is_ok());
        assert!(!is_waiting(idle.evicted()).await);
        assert!(is_waiting(all[0].1.evicted()).await);
    }
}
