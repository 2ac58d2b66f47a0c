//! Finished answers and statistics of drafts, by the scope that they belong to, in bounded memory.
//!
//! Scopes learn nothing of each other here, even if they share prefixes of prompts: a history holds answers, and the
//! success of drafts depends on them. The least recently used scope is forgotten first.

use std::collections::BTreeMap;

use super::request::ScopeId;
use heg_draft::{Acceptance, History};

/// The history and statistics of one scope's requests.
pub(super) struct Lessons {
    pub(super) history: History,
    /// Acceptance statistics of drafted tokens.
    pub(super) taught: Acceptance,
    /// Memory of the history when the last answer was added, in bytes.
    bytes: usize,
    /// Number of the latest use, among those of all scopes.
    used: u64,
}

/// Tokens of finished answers that are kept for a scope. Chosen: an agent's day, in at most 64 B a token.
pub(super) const HISTORY_TOKENS: usize = 1 << 18;

/// The histories and statistics of all scopes.
pub(super) struct Learnt {
    scopes: BTreeMap<ScopeId, Lessons>,
    uses: u64,
    limits: Limits,
}

/// Bounds on the memory of histories.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Most scopes that are kept.
    pub(super) scopes: usize,
    /// Memory of all histories, in bytes.
    pub(super) bytes: usize,
}

impl Default for Limits {
    /// Chosen: five full histories, or short ones of more clients than a machine serves at once.
    fn default() -> Self {
        Self {
            scopes: 256,
            bytes: 48 << 20,
        }
    }
}

impl Learnt {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            scopes: BTreeMap::new(),
            uses: 0,
            limits,
        }
    }

    /// Returns the lessons of a scope, and marks it as used now.
    pub(super) fn of(&mut self, scope: ScopeId) -> &mut Lessons {
        self.uses += 1;
        if !self.scopes.contains_key(&scope) {
            while self.scopes.len() >= self.limits.scopes.max(1) {
                self.forget_oldest();
            }
        }
        let lessons = self.scopes.entry(scope).or_insert_with(|| Lessons {
            history: History::new(HISTORY_TOKENS),
            taught: Acceptance::default(),
            bytes: 0,
            used: 0,
        });
        lessons.used = self.uses;
        lessons
    }

    /// Keeps a finished answer for later requests of its scope.
    pub(super) fn keep(&mut self, scope: ScopeId, prompt: &[u32], answer: &[u32]) {
        self.of(scope).history.add(prompt, answer);
        self.weigh(scope);
    }

    /// Takes in earlier answers of a scope, if none are kept for it: its requests may be reading those.
    pub(super) fn recall(&mut self, scope: ScopeId, history: History) {
        let lessons = self.of(scope);
        if lessons.history.tokens() == 0 {
            lessons.history = history;
            self.weigh(scope);
        }
    }

    /// Memory of all histories, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.scopes.values().map(|lessons| lessons.bytes).sum()
    }

    /// Measures the history of the scope used last, and forgets other scopes until all fit.
    fn weigh(&mut self, scope: ScopeId) {
        let lessons = self.of(scope);
        lessons.bytes = lessons.history.bytes();
        while self.scopes.len() > 1 && self.bytes() > self.limits.bytes {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.scopes.iter().min_by_key(|(_, lessons)| lessons.used);
        if let Some(oldest) = oldest.map(|(scope, _)| *scope) {
            self.scopes.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(learnt: &Learnt) -> Vec<u64> {
        learnt.scopes.keys().map(|scope| scope.0).collect()
    }

    #[test]
    fn another_client_always_has_a_history_and_the_one_that_was_away_longest_is_forgotten() {
        let mut learnt = Learnt::new(Limits {
            scopes: 16,
            ..Limits::default()
        });
        for scope in 0..16 {
            learnt.keep(ScopeId(scope), &[1, 2], &[3, 4, 5]);
        }
        // The first scope is still here; the second is not.
        learnt.of(ScopeId(0));
        learnt.keep(ScopeId(16), &[1, 2], &[3, 4, 5]);
        assert_eq!(learnt.of(ScopeId(16)).history.tokens(), 5);
        let expected: Vec<u64> = [0].into_iter().chain(2..17).collect();
        assert_eq!(scopes(&learnt), expected);
    }

    #[test]
    fn all_histories_together_are_bounded() {
        let limits = Limits {
            scopes: 16,
            bytes: 1 << 20,
        };
        let mut learnt = Learnt::new(limits);
        let mut forgotten = 0;
        for at in 0..400_u32 {
            let answer: Vec<u32> = (0..300).map(|token| at * 300 + token * token).collect();
            learnt.keep(ScopeId(u64::from(at % 5)), &[1, 2], &answer);
            let actual = learnt
                .scopes
                .values()
                .map(|lessons| lessons.history.bytes());
            assert_eq!(learnt.bytes(), actual.sum::<usize>());
            assert!(learnt.bytes() <= limits.bytes || learnt.scopes.len() == 1);
            let own = learnt.of(ScopeId(u64::from(at % 5)));
            assert!(own.history.tokens() >= 302, "the latest answer is kept");
            forgotten += usize::from(at > 5 && scopes(&learnt).len() < 5);
        }
        assert!(forgotten > 0);
    }

    #[test]
    fn recalled_answers_never_replace_answers() {
        let mut learnt = Learnt::new(Limits::default());
        let past = |tokens: &[u32]| {
            let mut history = History::new(HISTORY_TOKENS);
            history.add(&[], tokens);
            history
        };
        // A scope may be in use before any of its answers has ended.
        learnt.of(ScopeId(1));
        learnt.recall(ScopeId(1), past(&[1, 2, 3]));
        assert_eq!(learnt.of(ScopeId(1)).history.tokens(), 3);
        learnt.recall(ScopeId(1), past(&[1, 2, 3, 4]));
        assert_eq!(learnt.of(ScopeId(1)).history.tokens(), 3);
    }
}
