//! Memory that the bundles of several engines take: one budget for all of them.
//!
//! A mapped bundle is in memory where something was read of it. When a request needs a model, and bundles in memory are longer
//! than the budget together, those that no request needs are released, the longest unused first. A released bundle stays
//! mapped: the next request reads it again, from the system's cache of files as long as that has room, else from the disk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use heg_artifacts::Bundle;

/// Bytes of bundles that several engines keep in memory. Clones share them; the default is without a bound.
#[derive(Debug, Clone, Default)]
pub struct ResidentBudget {
    shared: Option<Arc<Mutex<Shared>>>,
    stay: Stay,
}

/// The time for which a bundle stays in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stay {
    /// Until others need its memory and no request needs it.
    #[default]
    WhileNeeded,
    /// Always, once it was read.
    Pinned,
}

#[derive(Debug)]
struct Shared {
    ledger: Ledger,
    /// The bundle of each place.
    bundles: Vec<Weak<Bundle>>,
}

impl ResidentBudget {
    /// A budget for the engines that are started with it.
    pub fn of_bytes(bytes: u64) -> Self {
        let shared = Shared {
            ledger: Ledger::new(bytes),
            bundles: Vec::new(),
        };
        Self {
            shared: Some(Arc::new(Mutex::new(shared))),
            stay: Stay::default(),
        }
    }

    /// The same budget, for an engine whose bundle stays so.
    #[must_use]
    pub fn for_bundle(&self, stay: Stay) -> Self {
        Self {
            stay,
            ..self.clone()
        }
    }

    /// A place for an engine's bundle, which no request needs yet.
    pub(super) fn place(&self, bundle: &Arc<Bundle>) -> Residence {
        let place = self.shared.clone().map(|shared| {
            let mut locked = lock(&shared);
            locked.bundles.push(Arc::downgrade(bundle));
            let bytes = bundle.mapping().len() as u64;
            let number = locked.ledger.enter(bytes, self.stay);
            drop(locked);
            (shared, number)
        });
        Residence {
            place: Place(place),
            is_needed: false,
        }
    }
}

/// The place of an engine's bundle in a budget, if there is one.
#[derive(Clone)]
pub(super) struct Place(Option<(Arc<Mutex<Shared>>, usize)>);

impl Place {
    /// Whether the bundle is in memory, as far as the budget knows; `None` without one.
    pub(super) fn is_resident(&self) -> Option<bool> {
        let (shared, number) = self.0.as_ref()?;
        Some(lock(shared).ledger.is_resident(*number))
    }
}

/// An engine's use of its place.
pub(super) struct Residence {
    place: Place,
    is_needed: bool,
}

impl Residence {
    /// Says whether any request needs the bundle; others make room for one that becomes needed. Returns whether it was
    /// released before, and is now read again.
    pub(super) fn need(&mut self, is_needed: bool) -> bool {
        let Place(Some((shared, number))) = &self.place else {
            return false;
        };
        if self.is_needed == is_needed {
            return false;
        }
        self.is_needed = is_needed;
        let mut locked = lock(shared);
        if !is_needed {
            locked.ledger.end(*number);
            return false;
        }
        let needed = locked.ledger.begin(*number);
        let unneeded = needed.released.iter();
        let unneeded = unneeded.filter_map(|number| locked.bundles.get(*number)?.upgrade());
        release(unneeded.collect());
        needed.was_released
    }

    pub(super) fn place(&self) -> Place {
        self.place.clone()
    }
}

impl Drop for Residence {
    fn drop(&mut self) {
        if let Place(Some((shared, number))) = &self.place {
            lock(shared).ledger.leave(*number);
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases bundles on a thread of its own, since it takes milliseconds for each 100 MB. A request that needs one of them
/// meanwhile reads it again.
fn release(bundles: Vec<Arc<Bundle>>) {
    if bundles.is_empty() {
        return;
    }
    // Without the thread they stay in memory, and the system decides.
    let _ = thread::Builder::new()
        .name("releasing".to_owned())
        .spawn(move || {
            for bundle in bundles {
                // A refusal costs memory only.
                let _ = bundle.mapping().give_back(0..u64::MAX);
            }
        });
}

/// The bundles in memory, and which of them to release.
#[derive(Debug)]
struct Ledger {
    budget_bytes: u64,
    entries: Vec<Entry>,
    /// Number of times at which a bundle became needed or unneeded.
    turns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: u64,
    stay: Stay,
    presence: Presence,
    /// The turn in which it was last needed.
    last: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// Nothing was read of it yet, or its engine has ended.
    Absent,
    Needed,
    Unneeded,
    Released,
}

/// The consequence of a need.
#[derive(Debug, PartialEq, Eq)]
struct Needed {
    was_released: bool,
    /// The entries whose bundles make room.
    released: Vec<usize>,
}

impl Ledger {
    fn new(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            entries: Vec::new(),
            turns: 0,
        }
    }

    fn enter(&mut self, bytes: u64, stay: Stay) -> usize {
        self.entries.push(Entry {
            bytes,
            stay,
            presence: Presence::Absent,
            last: 0,
        });
        self.entries.len() - 1
    }

    fn begin(&mut self, number: usize) -> Needed {
        let before = self.set(number, Presence::Needed);
        let mut released = Vec::new();
        while self.resident_bytes() > self.budget_bytes {
            let unneeded = self.entries.iter_mut().enumerate();
            let unneeded = unneeded.filter(|(_, it)| it.may_be_released());
            let Some((longest, entry)) = unneeded.min_by_key(|(_, it)| it.last) else {
                break;
            };
            entry.presence = Presence::Released;
            released.push(longest);
        }
        Needed {
            was_released: before == Some(Presence::Released),
            released,
        }
    }

    fn end(&mut self, number: usize) {
        self.set(number, Presence::Unneeded);
    }

    fn leave(&mut self, number: usize) {
        self.set(number, Presence::Absent);
    }

    fn is_resident(&self, number: usize) -> bool {
        self.entries.get(number).is_some_and(Entry::is_resident)
    }

    fn resident_bytes(&self) -> u64 {
        let resident = self.entries.iter().filter(|entry| entry.is_resident());
        resident.fold(0, |sum, entry| sum.saturating_add(entry.bytes))
    }

    /// Changes a presence, and returns the one before.
    fn set(&mut self, number: usize, presence: Presence) -> Option<Presence> {
        self.turns += 1;
        let entry = self.entries.get_mut(number)?;
        entry.last = self.turns;
        Some(std::mem::replace(&mut entry.presence, presence))
    }
}

impl Entry {
    fn is_resident(&self) -> bool {
        matches!(self.presence, Presence::Needed | Presence::Unneeded)
    }

    fn may_be_released(&self) -> bool {
        self.presence == Presence::Unneeded && self.stay == Stay::WhileNeeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ledger of 100 bytes for bundles of these lengths; the first is pinned.
    fn ledger(lengths: &[u64]) -> Ledger {
        let mut ledger = Ledger::new(100);
        for (number, bytes) in lengths.iter().enumerate() {
            let stay = match number {
                0 => Stay::Pinned,
                _ => Stay::WhileNeeded,
            };
            ledger.enter(*bytes, stay);
        }
        ledger
    }

    #[test]
    fn the_longest_unused_makes_room() {
        let mut ledger = ledger(&[10, 40, 40, 40]);
        for number in [1, 2, 0] {
            assert_eq!(ledger.begin(number).released, Vec::<usize>::new());
            ledger.end(number);
        }
        let third = Needed {
            was_released: false,
            released: vec![1],
        };
        assert_eq!(ledger.begin(3), third);
        let again = Needed {
            was_released: true,
            released: vec![2],
        };
        assert_eq!(ledger.begin(1), again);
        assert!(ledger.is_resident(0) && !ledger.is_resident(2));
    }

    #[test]
    fn needed_and_pinned_bundles_stay_above_the_budget() {
        let mut ledger = ledger(&[60, 60, 60]);
        ledger.begin(0);
        ledger.end(0);
        ledger.begin(1);
        assert_eq!(ledger.begin(2).released, Vec::<usize>::new());
        ledger.end(1);
        ledger.end(2);
        // Nobody needs room now; the next need makes it.
        assert!(ledger.is_resident(1));
        assert_eq!(ledger.begin(2).released, [1]);
        ledger.leave(2);
        assert_eq!(ledger.resident_bytes(), 60);
    }

    proptest! {
        /// Whatever requests come and go, no more is in memory than the budget, unless all of it is needed or pinned.
        #[test]
        fn the_budget_holds(
            lengths in prop::collection::vec(0..80_u64, 1..6),
            turns in prop::collection::vec((0..6_usize, prop::bool::ANY), 0..60),
        ) {
            let mut ledger = ledger(&lengths);
            for (number, begins) in turns {
                let number = number % lengths.len();
                if !begins {
                    if ledger.entries[number].presence == Presence::Needed {
                        ledger.end(number);
                    }
                    continue;
                }
                let needed = ledger.begin(number);
                prop_assert!(!needed.released.contains(&number));
                prop_assert!(ledger.is_resident(number));
                let spare = ledger.entries.iter().any(Entry::may_be_released);
                prop_assert!(ledger.resident_bytes() <= 100 || !spare);
            }
        }
    }
}
