//! Drafts of answers: what the conductor expects a request's next tokens to be, for a lane to verify (sd.npu §4.1).
//!
//! A lane chooses tokens along a draft as it would without one, so drafts change how soon an answer comes and not what
//! it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::request::ScopeId;
use heg_draft::{Acceptance, Beside, Draft, Drafter, History, Shape};

/// Whether answers are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// A token at a time.
    #[default]
    Off,
    /// Tokens that follow one another, as long as they are likely to pay.
    Chain,
}

/// Counts of one request's verifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftCounts {
    /// Decode iterations.
    pub steps: u32,
    /// Drafted tokens that were verified.
    pub drafted_tokens: u32,
    /// Those of them that became part of the answer.
    pub accepted_tokens: u32,
}

/// What drafts of all requests are made with.
pub(super) struct Drafting {
    /// Finished answers, by the scope that they belong to.
    histories: BTreeMap<ScopeId, History>,
    /// The history of a scope that has none.
    nothing: History,
    /// How often tokens turned out right.
    taught: Acceptance,
}

/// Tokens of finished answers that are kept for a scope. Chosen: an agent's day, in at most 64 B a token.
const HISTORY_TOKENS: usize = 1 << 18;
/// Scopes whose answers are kept; a server has few, and nobody may make it keep more.
const SCOPES: usize = 16;
/// Most tokens of a draft: with the token before them, the rows of the smallest chunk of an NPU's kernels.
const DRAFT_TOKENS: usize = 31;

/// The drafts of one request.
pub(super) struct RequestDrafts {
    drafter: Drafter,
    /// What is expected to follow the answer so far.
    draft: Draft,
    counts: DraftCounts,
}

impl RequestDrafts {
    /// For an answer after a prompt.
    pub(super) fn new(prompt: &[u32]) -> Self {
        Self {
            drafter: Drafter::new(prompt),
            draft: Draft::default(),
            counts: DraftCounts::default(),
        }
    }

    /// The first tokens of the draft.
    pub(super) fn leading(&self, tokens: u32) -> Vec<u32> {
        let drafted = self.draft.tokens().iter().take(tokens as usize);
        drafted.map(|drafted| drafted.token).collect()
    }

    pub(super) fn counts(&self) -> DraftCounts {
        self.counts
    }
}

impl Drafting {
    /// Learns the next tokens of an answer, and drafts what may follow them. `fed` is the number of drafted tokens that
    /// were verified, where the request decoded. Returns how likely each token of the new draft is reached, in
    /// thousandths.
    pub(super) fn next(
        &mut self,
        scope: ScopeId,
        drafts: &mut RequestDrafts,
        given: &[u32],
        fed: Option<u32>,
    ) -> Arc<[u16]> {
        if let Some(fed) = fed {
            let fed = drafts.draft.leading(fed as usize);
            drafts.counts.steps += 1;
            drafts.counts.drafted_tokens += fed.len() as u32;
            drafts.counts.accepted_tokens += given.len().saturating_sub(1) as u32;
            drafts.drafter.verified(&fed, given, &[], &mut self.taught);
        }
        let history = self.histories.get(&scope).unwrap_or(&self.nothing);
        for token in given {
            drafts.drafter.push(*token, history);
        }
        let beside = Beside {
            history,
            taught: &self.taught,
            forced: &[],
        };
        drafts.draft = drafts.drafter.draft(Shape::Chain, DRAFT_TOKENS, &beside);
        let mut least = u16::MAX;
        let reaches = drafts.draft.tokens().iter().map(|drafted| {
            least = least.min((drafted.reach * 1000.0) as u16);
            least
        });
        reaches.collect()
    }

    /// Keeps a finished answer for later requests of its scope.
    pub(super) fn keep(&mut self, scope: ScopeId, prompt: &[u32], answer: &[u32]) {
        if self.histories.len() >= SCOPES && !self.histories.contains_key(&scope) {
            return;
        }
        let history = self.histories.entry(scope);
        let history = history.or_insert_with(|| History::new(HISTORY_TOKENS));
        history.add(prompt, answer);
    }
}

impl Default for Drafting {
    fn default() -> Self {
        Self {
            histories: BTreeMap::new(),
            nothing: History::new(0),
            taught: Acceptance::default(),
        }
    }
}
