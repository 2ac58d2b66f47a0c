//! A suffix automaton: every run of tokens that occurs in a text, how often, and what came after it.
//!
//! It grows token by token (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"), over
//! several texts if wanted, and takes amortised constant time for a token. A state stands for runs that end at the same
//! places; its `link` for their longest suffixes that end at more places.

use std::collections::HashMap;

use crate::edges::{EdgeSet, Edges, TOKEN_LIMIT};

/// Names a state of one automaton.
type StateId = u32;

const ROOT: StateId = 0;
/// The link of the root.
const NOWHERE: StateId = u32::MAX;
/// States that learn of an occurrence at most: those of the longest runs. In a text of one token alone there would be as
/// many as tokens.
const COUNTED_MAX: usize = 64;

/// Tokens that may come after a match for it to predict one.
const CONTINUATIONS_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
struct State {
    /// Tokens of the longest run.
    longest: u32,
    link: StateId,
    /// How often the runs occurred, the end of the text not counted.
    count: u32,
    /// When they last occurred.
    seen: u32,
    edges: EdgeSet,
}

/// The automaton.
#[derive(Debug, Clone)]
pub struct Automaton {
    states: Vec<State>,
    edges: Edges,
    /// The edges of the root: one for each token that ever occurred.
    first: HashMap<u32, StateId>,
    /// The state of the whole text so far.
    last: StateId,
    tokens: u32,
}

/// A run of tokens that occurs in an automaton: the longest suffix of what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    state: StateId,
    /// Its length, in tokens.
    pub length: u32,
}

impl Match {
    /// Nothing matches.
    pub const NONE: Self = Self {
        state: ROOT,
        length: 0,
    };
}

/// A token that came after a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Continuation {
    /// The token.
    pub token: u32,
    /// How often it came there.
    pub count: u32,
    /// When it last came there.
    pub seen: u32,
    state: StateId,
}

impl Continuation {
    /// The match that goes on with the token.
    pub fn after(self, before: Match) -> Match {
        Match {
            state: self.state,
            length: before.length + 1,
        }
    }
}

impl Default for Automaton {
    fn default() -> Self {
        let root = State {
            longest: 0,
            link: NOWHERE,
            count: 0,
            seen: 0,
            edges: EdgeSet::EMPTY,
        };
        Self {
            states: vec![root],
            edges: Edges::default(),
            first: HashMap::new(),
            last: ROOT,
            tokens: 0,
        }
    }
}

impl Automaton {
    /// Tokens of all texts.
    pub fn tokens(&self) -> usize {
        self.tokens as usize
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        // The table of a hash map keeps a byte beside each place, and an eighth of the places empty.
        let first = self.first.capacity() * (size_of::<(u32, StateId)>() + 1) * 8 / 7;
        self.states.capacity() * size_of::<State>() + self.edges.bytes() + first
    }

    /// Appends a token to the text. A number that is no token ends the text instead.
    pub fn push(&mut self, token: u32) {
        if token >= TOKEN_LIMIT || self.states.len() >= (u32::MAX - 2) as usize {
            return self.end_text();
        }
        // Of the text so far only now: a run that nothing came after yet predicts nothing.
        self.count_suffixes();
        self.tokens += 1;
        if let Some(next) = self.next(self.last, token) {
            self.last = self.exactly(self.last, token, next);
            return;
        }
        let new = self.add_state(self.state(self.last).longest + 1);
        let mut from = self.last;
        let link = loop {
            if from == NOWHERE {
                break ROOT;
            }
            if let Some(next) = self.next(from, token) {
                break self.exactly(from, token, next);
            }
            self.add_edge(from, token, new);
            from = self.state(from).link;
        };
        self.state_mut(new).link = link;
        self.last = new;
    }

    /// Ends a text: the next token begins another.
    pub fn end_text(&mut self) {
        self.count_suffixes();
        self.last = ROOT;
    }

    /// Gives back memory that is held for growth.
    pub fn shrink(&mut self) {
        self.states.shrink_to_fit();
        self.edges.shrink();
        self.first.shrink_to_fit();
    }

    /// The longest suffix of the text that occurs earlier in it.
    pub fn repeated(&self) -> Match {
        let link = self.state(self.last).link;
        match link {
            NOWHERE => Match::NONE,
            state => Match {
                state,
                length: self.state(state).longest,
            },
        }
    }

    /// The longest suffix of a match and a token after it that occurs in the texts.
    ///
    /// A match stays good while the automaton grows, though there may be a longer one then.
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
        let state = self.state(self.settled(at).state).link;
        (state != NOWHERE).then(|| Match {
            state,
            length: self.state(state).longest,
        })
    }

    /// How often a match occurred and was followed by a token, or by the end of a text.
    pub fn count(&self, at: Match) -> u32 {
        self.state(self.settled(at).state).count
    }

    /// What came after a match; nothing where too many tokens did for one of them to be likely.
    pub fn continuations(&self, at: Match) -> impl Iterator<Item = Continuation> {
        let edges = match self.settled(at).state {
            ROOT => EdgeSet::EMPTY,
            state => self.state(state).edges,
        };
        let edges = match self.edges.len(edges) {
            0..=CONTINUATIONS_MAX => edges,
            _ => EdgeSet::EMPTY,
        };
        self.edges.iter(edges).map(|(token, state)| {
            let State { count, seen, .. } = *self.state(state);
            Continuation {
                token,
                count,
                seen,
                state,
            }
        })
    }

    /// A match in the state that its length belongs to, which a later split may have changed.
    fn settled(&self, mut at: Match) -> Match {
        loop {
            let link = self.state(at.state).link;
            if link == NOWHERE || at.length > self.state(link).longest {
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
            let state = self.state_mut(at);
            state.count = state.count.saturating_add(1);
            state.seen = seen;
            at = state.link;
        }
    }

    /// The state of just the runs of `from` with a token after them: `next`, or a part of it that is split off.
    fn exactly(&mut self, from: StateId, token: u32, next: StateId) -> StateId {
        let longest = self.state(from).longest + 1;
        let whole = *self.state(next);
        if whole.longest == longest {
            return next;
        }
        let edges = self.edges.copy(whole.edges);
        let part = self.add_state(longest);
        *self.state_mut(part) = State {
            longest,
            edges,
            ..whole
        };
        self.state_mut(next).link = part;
        let mut from = from;
        while from != NOWHERE && self.next(from, token) == Some(next) {
            self.redirect(from, token, part);
            from = self.state(from).link;
        }
        part
    }

    fn next(&self, from: StateId, token: u32) -> Option<StateId> {
        match from {
            ROOT => self.first.get(&token).copied(),
            from => self.edges.target(self.state(from).edges, token),
        }
    }

    fn add_edge(&mut self, from: StateId, token: u32, to: StateId) {
        if from == ROOT {
            self.first.insert(token, to);
            return;
        }
        let mut edges = self.state(from).edges;
        self.edges.add(&mut edges, token, to);
        self.state_mut(from).edges = edges;
    }

    fn redirect(&mut self, from: StateId, token: u32, to: StateId) {
        if from == ROOT {
            self.first.insert(token, to);
            return;
        }
        let mut edges = self.state(from).edges;
        self.edges.redirect(&mut edges, token, to);
        self.state_mut(from).edges = edges;
    }

    fn add_state(&mut self, longest: u32) -> StateId {
        grow_by_an_eighth(&mut self.states);
        self.states.push(State {
            longest,
            link: ROOT,
            count: 0,
            seen: 0,
            edges: EdgeSet::EMPTY,
        });
        (self.states.len() - 1) as StateId
    }

    /// A state: every id that there is was given by `add_state` of this automaton.
    fn state(&self, id: StateId) -> &State {
        &self.states[id as usize]
    }

    fn state_mut(&mut self, id: StateId) -> &mut State {
        &mut self.states[id as usize]
    }
}

/// Makes room for one more, and takes less memory in advance than a vector does by itself.
pub(crate) fn grow_by_an_eighth<T>(values: &mut Vec<T>) {
    if values.len() == values.capacity() {
        values.reserve_exact((values.len() / 8).max(8));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn automaton_of(texts: &[Vec<u32>]) -> Automaton {
        let mut automaton = Automaton::default();
        for text in texts {
            for token in text {
                automaton.push(*token);
            }
            automaton.end_text();
        }
        automaton
    }

    /// How often a run occurs, and what comes after it, by looking everywhere.
    fn occurrences(texts: &[Vec<u32>], run: &[u32]) -> (u32, HashMap<u32, u32>) {
        let mut after = HashMap::new();
        let mut count = 0;
        for text in texts {
            for end in run.len()..=text.len() {
                if text[end - run.len()..end] == *run {
                    count += 1;
                    if let Some(next) = text.get(end) {
                        *after.entry(*next).or_default() += 1;
                    }
                }
            }
        }
        (count, after)
    }

    fn texts() -> impl Strategy<Value = Vec<Vec<u32>>> {
        prop::collection::vec(prop::collection::vec(0..4_u32, 0..40), 1..4)
    }

    proptest! {
        #[test]
        fn matches_counts_and_continuations_are_those_of_a_search(
            texts in texts(),
            read in prop::collection::vec(0..4_u32, 1..40),
        ) {
            let automaton = automaton_of(&texts);
            let mut at = Match::NONE;
            for end in 1..=read.len() {
                at = automaton.advance(at, read[end - 1]);
                let longest = (0..=end).find(|from| occurrences(&texts, &read[*from..end]).0 > 0);
                prop_assert_eq!(at.length as usize, end - longest.unwrap_or(end));
                if at.length == 0 {
                    continue;
                }
                let run = &read[end - at.length as usize..end];
                let (count, after) = occurrences(&texts, run);
                prop_assert_eq!(automaton.count(at), count);
                let found: HashMap<u32, u32> =
                    automaton.continuations(at).map(|next| (next.token, next.count)).collect();
                // A continuation is counted in its own state, whose runs may all begin earlier.
                for (token, count) in &after {
                    prop_assert_eq!(found.get(token), Some(count));
                }
                prop_assert_eq!(found.len(), after.len());
            }
        }

        #[test]
        fn the_repeated_suffix_is_the_longest(text in prop::collection::vec(0..3_u32, 1..60)) {
            let mut automaton = Automaton::default();
            for (end, token) in text.iter().enumerate() {
                automaton.push(*token);
                let so_far = &text[..=end];
                let repeats = |length: &usize| {
                    let suffix = &so_far[so_far.len() - length..];
                    so_far[..so_far.len() - 1].windows(*length).any(|run| run == suffix)
                };
                let longest = (1..so_far.len()).rev().find(repeats).unwrap_or(0);
                prop_assert_eq!(automaton.repeated().length as usize, longest);
            }
        }

        #[test]
        fn a_match_stays_good_while_the_text_grows(
            text in prop::collection::vec(0..3_u32, 2..60),
            cut in 1..30_usize,
            more in prop::collection::vec(0..3_u32, 1..20),
        ) {
            let cut = cut.min(text.len());
            let mut automaton = automaton_of(&[text[..cut].to_vec()]);
            let mut at = Match::NONE;
            for token in &more {
                at = automaton.advance(at, *token);
            }
            for token in &text[cut..] {
                automaton.push(*token);
            }
            automaton.end_text();
            let texts = [text[..cut].to_vec(), text[cut..].to_vec()];
            let run = &more[more.len() - at.length as usize..];
            if !run.is_empty() {
                prop_assert_eq!(automaton.count(at), occurrences(&texts, run).0);
            }
        }
    }

    #[test]
    fn one_token_over_and_over_takes_no_longer_for_it() {
        let mut automaton = Automaton::default();
        for _ in 0..100_000 {
            automaton.push(7);
        }
        assert_eq!(automaton.repeated().length, 99_999);
    }

    #[test]
    fn what_is_no_token_ends_the_text() {
        let mut automaton = Automaton::default();
        for token in [1, 2, u32::MAX, 1] {
            automaton.push(token);
        }
        let after: Vec<u32> = automaton
            .continuations(automaton.advance(Match::NONE, 1))
            .map(|next| next.token)
            .collect();
        assert_eq!(after, [2]);
    }
}
