//! A suffix automaton: every run of tokens that occurs in a text, its number of occurrences, and its continuations.
//!
//! It grows token by token (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"), over one
//! or several texts, in amortised constant time per token. A state stands for the runs that end at the same positions;
//! its `link` leads to their longest suffixes that end at more positions.
//!
//! Automata that continue one text share its memory, and copy on write.

use std::collections::HashMap;
use std::sync::Arc;

use crate::edges::{EdgeSet, Edges, LISTED_MAX, TOKEN_LIMIT, table_bytes};
use crate::states::{NOWHERE, ROOT, State, StateId, States};

/// Most states that count an occurrence: those of the longest runs. In a text of one repeated token all states would.
const COUNTED_MAX: usize = 64;

/// Most distinct continuations of a match that predicts any.
const CONTINUATIONS_MAX: usize = LISTED_MAX;

/// A suffix automaton over one or several texts.
#[derive(Debug, Clone, Default)]
pub struct Automaton {
    states: States,
    edges: Edges,
    first: RootEdges,
    /// The state of the whole text so far.
    last: StateId,
    tokens: u32,
}

/// The edges of the root: one for each distinct token.
#[derive(Debug, Clone, Default)]
struct RootEdges {
    shared: Arc<HashMap<u32, StateId>>,
    own: HashMap<u32, StateId>,
}

/// A run of tokens that occurs in an automaton, the longest suffix of the tokens read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    state: StateId,
    /// Length in tokens.
    pub length: u32,
}

impl Match {
    /// The empty match.
    pub const NONE: Self = Self {
        state: ROOT,
        length: 0,
    };
}

/// A token that followed a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Continuation {
    /// The token.
    pub token: u32,
    /// Number of occurrences.
    pub count: u32,
    /// Token count of the text at the latest occurrence.
    pub seen: u32,
    state: StateId,
}

impl Continuation {
    /// The match extended by this token.
    pub fn after(self, before: Match) -> Match {
        Match {
            state: self.state,
            length: before.length + 1,
        }
    }
}

impl Automaton {
    /// Number of tokens in all texts.
    pub fn tokens(&self) -> usize {
        self.tokens as usize
    }

    /// Memory in bytes, shared memory included.
    pub fn bytes(&self) -> usize {
        let shared = self.states.shared_bytes() + self.edges.shared_bytes();
        shared + table_bytes(&self.first.shared) + self.own_bytes()
    }

    /// Memory in bytes that only this automaton uses.
    pub fn own_bytes(&self) -> usize {
        let first = table_bytes(&self.first.own);
        self.states.own_bytes() + self.edges.own_bytes() + first
    }

    /// Lets clones share the memory of the text so far, however each continues. Does nothing if a text is shared
    /// already.
    pub fn share(&mut self) {
        if self.states.share() {
            self.edges.share();
            self.first.own.shrink_to_fit();
            self.first.shared = Arc::new(std::mem::take(&mut self.first.own));
        }
    }

    /// Appends a token to the text. A number too large for a token ends the text instead.
    pub fn push(&mut self, token: u32) {
        if token >= TOKEN_LIMIT || self.states.len() >= (u32::MAX - 2) as usize {
            return self.end_text();
        }
        // Counted only now: a run without a continuation yet predicts nothing.
        self.count_suffixes();
        self.tokens += 1;
        if let Some(next) = self.next(self.last, token) {
            self.last = self.exactly(self.last, token, next);
            return;
        }
        let new = self.states.add(self.states.get(self.last).longest + 1);
        let mut from = self.last;
        let link = loop {
            if from == NOWHERE {
                break ROOT;
            }
            if let Some(next) = self.next(from, token) {
                break self.exactly(from, token, next);
            }
            self.add_edge(from, token, new);
            from = self.states.get(from).link;
        };
        self.states.get_mut(new).link = link;
        self.last = new;
    }

    /// Ends the current text: the next token begins another.
    pub fn end_text(&mut self) {
        self.count_suffixes();
        self.last = ROOT;
    }

    /// Frees memory that is held for growth.
    pub fn shrink(&mut self) {
        self.states.shrink();
        self.edges.shrink();
        self.first.own.shrink_to_fit();
    }

    /// The longest suffix of the current text that occurs earlier, too.
    pub fn repeated(&self) -> Match {
        let link = self.states.get(self.last).link;
        match link {
            NOWHERE => Match::NONE,
            state => Match {
                state,
                length: self.states.get(state).longest,
            },
        }
    }

    /// Extends a match by a token: the longest suffix of both that occurs in the texts.
    ///
    /// A match stays valid while the automaton grows, though a longer one may exist then.
    pub fn advance(&self, mut at: Match, token: u32) -> Match {
        at = self.settled(at);
        loop {
            if let Some(state) = self.next(at.state, token) {
                let length = at.length + 1;
                return self.settled(Match { state, length });
            }
            at = match self.shorter(at) {
                Some(shorter) => shorter,
                None => return Match::NONE,
            };
        }
    }

    /// The longest suffix of a match that occurs more often.
    pub fn shorter(&self, at: Match) -> Option<Match> {
        let state = self.states.get(self.settled(at).state).link;
        (state != NOWHERE).then(|| Match {
            state,
            length: self.states.get(state).longest,
        })
    }

    /// Number of occurrences of a match that were followed by a token or by the end of a text.
    pub fn count(&self, at: Match) -> u32 {
        self.states.get(self.settled(at).state).count
    }

    /// Continuations of a match; none if there are more than 64.
    pub fn continuations(&self, at: Match) -> impl Iterator<Item = Continuation> {
        let all = match self.settled(at).state {
            ROOT => EdgeSet::EMPTY,
            state => self.states.get(state).edges,
        };
        let few = if self.edges.len(all) <= CONTINUATIONS_MAX {
            all
        } else {
            EdgeSet::EMPTY
        };
        self.edges.iter(few).map(|(token, state)| {
            let State { count, seen, .. } = *self.states.get(state);
            Continuation {
                token,
                count,
                seen,
                state,
            }
        })
    }

    /// Moves a match to the state that its length belongs to, which a split may have changed.
    fn settled(&self, mut at: Match) -> Match {
        loop {
            let link = self.states.get(at.state).link;
            if link == NOWHERE || at.length > self.states.get(link).longest {
                return at;
            }
            at.state = link;
        }
    }

    /// Counts an occurrence of each suffix of the text so far.
    fn count_suffixes(&mut self) {
        let mut at = self.last;
        for _ in 0..COUNTED_MAX {
            if at == ROOT || at == NOWHERE {
                break;
            }
            let seen = self.tokens;
            let state = self.states.get_mut(at);
            state.count = state.count.saturating_add(1);
            state.seen = seen;
            at = state.link;
        }
    }

    /// The state for exactly the runs of `from` extended by `token`: `next`, or a part split off from it.
    fn exactly(&mut self, from: StateId, token: u32, next: StateId) -> StateId {
        let longest = self.states.get(from).longest + 1;
        let whole = *self.states.get(next);
        if whole.longest == longest {
            return next;
        }
        let edges = self.edges.copy(whole.edges);
        let part = self.states.add(longest);
        *self.states.get_mut(part) = State {
            longest,
            edges,
            ..whole
        };
        self.states.get_mut(next).link = part;
        let mut from = from;
        while from != NOWHERE && self.next(from, token) == Some(next) {
            self.redirect(from, token, part);
            from = self.states.get(from).link;
        }
        part
    }

    fn next(&self, from: StateId, token: u32) -> Option<StateId> {
        match from {
            ROOT => {
                let own = self.first.own.get(&token);
                own.or_else(|| self.first.shared.get(&token)).copied()
            }
            from => self.edges.target(self.states.get(from).edges, token),
        }
    }

    fn add_edge(&mut self, from: StateId, token: u32, to: StateId) {
        if from == ROOT {
            self.first.own.insert(token, to);
            return;
        }
        let mut edges = self.states.get(from).edges;
        self.edges.add(&mut edges, token, to);
        self.states.get_mut(from).edges = edges;
    }

    fn redirect(&mut self, from: StateId, token: u32, to: StateId) {
        if from == ROOT {
            self.first.own.insert(token, to);
            return;
        }
        let mut edges = self.states.get(from).edges;
        self.edges.redirect(&mut edges, token, to);
        self.states.get_mut(from).edges = edges;
    }
}

#[cfg(test)]
mod tests;
