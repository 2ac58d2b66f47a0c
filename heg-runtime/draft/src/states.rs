//! The states of an automaton: its own, and those of a text that it shares with others.
//!
//! Shared states are copied on write.

use std::collections::HashMap;
use std::sync::Arc;

use crate::edges::EdgeSet;

/// Index of a state within one automaton.
pub(crate) type StateId = u32;

pub(crate) const ROOT: StateId = 0;
/// The link of the root.
pub(crate) const NOWHERE: StateId = u32::MAX;

/// An equivalence class of runs of tokens: all that end at the same positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    /// Length of the longest run, in tokens.
    pub(crate) longest: u32,
    pub(crate) link: StateId,
    /// Occurrences of the runs, the one at the end of the text not counted.
    pub(crate) count: u32,
    /// Token count of the text at the latest occurrence.
    pub(crate) seen: u32,
    pub(crate) edges: EdgeSet,
}

/// All states. Every valid id is the root's or came from [`States::add`].
#[derive(Debug, Clone)]
pub(crate) struct States {
    shared: Arc<[State]>,
    /// One bit per shared state: whether `changed` has a copy. Empty until the first copy.
    is_changed: Vec<u64>,
    changed: HashMap<StateId, State>,
    /// States of this automaton alone. Their ids continue the shared ones.
    own: Vec<State>,
}

impl Default for States {
    fn default() -> Self {
        let root = State {
            longest: 0,
            link: NOWHERE,
            count: 0,
            seen: 0,
            edges: EdgeSet::EMPTY,
        };
        Self {
            shared: Arc::default(),
            is_changed: Vec::new(),
            changed: HashMap::new(),
            own: vec![root],
        }
    }
}

impl States {
    pub(crate) fn len(&self) -> usize {
        self.shared.len() + self.own.len()
    }

    #[inline]
    pub(crate) fn get(&self, id: StateId) -> &State {
        match (id as usize).checked_sub(self.shared.len()) {
            Some(own) => &self.own[own],
            None => self.of_shared(id),
        }
    }

    fn of_shared(&self, id: StateId) -> &State {
        let word = self.is_changed.get(id as usize / 64);
        let is_changed = word.is_some_and(|bits| bits >> (id % 64) & 1 == 1);
        let changed = is_changed.then(|| self.changed.get(&id)).flatten();
        changed.unwrap_or(&self.shared[id as usize])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: StateId) -> &mut State {
        match (id as usize).checked_sub(self.shared.len()) {
            Some(own) => &mut self.own[own],
            None => self.copied(id),
        }
    }

    /// The automaton's copy of a shared state, made on first use.
    fn copied(&mut self, id: StateId) -> &mut State {
        let words = self.shared.len().div_ceil(64);
        self.is_changed.resize(words, 0);
        self.is_changed[id as usize / 64] |= 1 << (id % 64);
        let original = self.shared[id as usize];
        self.changed.entry(id).or_insert(original)
    }

    /// Adds a state without edges.
    pub(crate) fn add(&mut self, longest: u32) -> StateId {
        grow_by_an_eighth(&mut self.own);
        self.own.push(State {
            longest,
            link: ROOT,
            count: 0,
            seen: 0,
            edges: EdgeSet::EMPTY,
        });
        (self.len() - 1) as StateId
    }

    /// Moves the states into memory that clones share. Returns false, and does nothing, if some are shared already.
    pub(crate) fn share(&mut self) -> bool {
        let is_first = self.shared.is_empty();
        if is_first {
            self.shared = std::mem::take(&mut self.own).into();
        }
        is_first
    }

    pub(crate) fn shrink(&mut self) {
        self.own.shrink_to_fit();
    }

    /// Bytes of memory that only this automaton uses.
    pub(crate) fn own_bytes(&self) -> usize {
        // As in other hash tables: one control byte per slot, and one slot in eight empty.
        let changed = self.changed.capacity() * (size_of::<(StateId, State)>() + 1) * 8 / 7;
        self.own.capacity() * size_of::<State>()
            + self.is_changed.capacity() * size_of::<u64>()
            + changed
    }

    /// Bytes of memory that automata share.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.shared.len() * size_of::<State>()
    }
}

/// Reserves room for one more value, growing by an eighth instead of doubling.
fn grow_by_an_eighth<T>(values: &mut Vec<T>) {
    if values.len() == values.capacity() {
        values.reserve_exact((values.len() / 8).max(8));
    }
}
