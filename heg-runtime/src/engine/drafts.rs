//! Drafts of answers: what the conductor expects a request's next tokens to be, for a lane to verify (sd.npu §4.1).
//!
//! A lane chooses tokens along a draft as it would without one, so drafts change how soon an answer comes and not what
//! it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::request::{Request, ScopeId};
use crate::history::PastAnswers;
use heg_draft::{Acceptance, Beside, Draft, Drafter, History, Likely, Shape, Verified};
use heg_spec::policy::DraftPolicy;

/// Whether answers are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// A token at a time.
    #[default]
    Off,
    /// Tokens that follow one another, as long as they are likely to pay.
    Chain,
    /// Several ways to go on, where CPU programs verify them; tokens that follow one another elsewhere.
    Tree,
}

impl Speculation {
    /// The shape of drafts, if there are any.
    pub(super) fn shape(self) -> Option<Shape> {
        match self {
            Self::Off => None,
            Self::Chain => Some(Shape::Chain),
            Self::Tree => Some(Shape::Tree),
        }
    }
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

impl DraftCounts {
    /// Drafted tokens that were verified in vain.
    pub fn rejected_tokens(&self) -> u32 {
        self.drafted_tokens.saturating_sub(self.accepted_tokens)
    }
}

impl std::iter::Sum for DraftCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, counts| Self {
            steps: sum.steps.saturating_add(counts.steps),
            drafted_tokens: sum.drafted_tokens.saturating_add(counts.drafted_tokens),
            accepted_tokens: sum.accepted_tokens.saturating_add(counts.accepted_tokens),
        })
    }
}

/// What drafts of all requests are made with.
pub(super) struct Drafting {
    vocabulary: u32,
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

/// A history of answers, the oldest first.
pub(super) fn history_of(answers: &PastAnswers) -> History {
    let mut history = History::new(HISTORY_TOKENS);
    for past in answers.iter() {
        history.add(&past.prompt_end, &past.answer);
    }
    history
}

/// The drafts of one request.
pub(super) struct RequestDrafts {
    drafter: Drafter,
    shape: Shape,
    /// What is expected to follow the answer so far.
    draft: Draft,
    counts: DraftCounts,
}

impl RequestDrafts {
    /// For the answer to a request.
    pub(super) fn new(request: &Request, shape: Shape, policy: DraftPolicy) -> Self {
        let mut drafter = Drafter::new(&request.prompt).under(policy);
        if !request.prediction.is_empty() {
            drafter.expect(&request.prediction);
        }
        Self {
            drafter,
            shape,
            draft: Draft::default(),
            counts: DraftCounts::default(),
        }
    }

    /// The likeliest tokens of the draft.
    pub(super) fn leading(&self, tokens: u32) -> DraftTokens {
        DraftTokens::of(&self.draft.leading(tokens as usize).depth_first())
    }

    /// Drafts from what the model found likely in the prompt, too.
    pub(super) fn calibrate(&mut self, prompt: &[u32], likely: Arc<[Likely]>) {
        self.drafter.calibrate(prompt, likely);
    }

    pub(super) fn counts(&self) -> DraftCounts {
        self.counts
    }
}

/// How much of a draft was verified, and what came of it beside tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fed<'a> {
    /// The first tokens of the draft.
    pub(super) tokens: u32,
    /// As in [`Verified`].
    pub(super) likeliest: &'a [bool],
}

/// Drafted tokens as a lane verifies them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DraftTokens {
    tokens: Vec<u32>,
    /// For each the row that it follows, where that is not always the one before it. The answer's last token has row 0, and
    /// the first drafted one row 1.
    follows: Option<Vec<u16>>,
}

impl DraftTokens {
    fn of(draft: &Draft) -> Self {
        let drafted = draft.tokens().iter();
        let follows = drafted.map(|drafted| drafted.parent.map_or(0, |parent| parent + 1));
        let follows: Vec<u16> = follows.collect();
        let is_chain = follows.iter().zip(0..).all(|(row, before)| *row == before);
        Self {
            tokens: draft.tokens().iter().map(|drafted| drafted.token).collect(),
            follows: (!is_chain).then_some(follows),
        }
    }

    /// The tokens, where each follows the one before it.
    pub(super) fn chain(&self) -> Option<&[u32]> {
        (!self.is_tree()).then_some(&self.tokens)
    }

    /// Leaves the first tokens of a chain; says how many go.
    pub(super) fn cut(&mut self, tokens: usize) -> u32 {
        let drafted = self.tokens.len();
        self.tokens.truncate(tokens);
        (drafted - self.tokens.len()) as u32
    }

    /// Whether tokens have more than one way to go on.
    pub(super) fn is_tree(&self) -> bool {
        self.follows.is_some()
    }

    /// All of them where trees are verified, else the first chain.
    pub(super) fn rows(&self, takes_trees: bool) -> DraftRows<'_> {
        let all = DraftRows {
            tokens: &self.tokens,
            follows: self.follows.as_deref(),
        };
        match all.follows {
            Some(follows) if !takes_trees => {
                let chain = follows.iter().zip(0..);
                let chain = chain.take_while(|(row, before)| *row == before).count();
                DraftRows {
                    tokens: all.tokens.get(..chain).unwrap_or_default(),
                    follows: None,
                }
            }
            _ => all,
        }
    }
}

/// Drafted tokens that are verified.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DraftRows<'a> {
    pub(super) tokens: &'a [u32],
    /// As in [`DraftTokens`].
    pub(super) follows: Option<&'a [u16]>,
}

impl DraftRows<'_> {
    /// The row of a token that follows the one of `row`, if it is drafted.
    pub(super) fn next(self, row: usize, token: u32) -> Option<usize> {
        let follows = |at: usize| match self.follows {
            Some(follows) => follows.get(at).map(|before| usize::from(*before)),
            None => Some(at),
        };
        let mut rows = row..self.tokens.len();
        let drafted = |at: usize| self.tokens.get(at) == Some(&token);
        let at = rows.find(|at| drafted(*at) && follows(*at) == Some(row));
        at.map(|at| at + 1)
    }
}

impl Drafting {
    /// For a model with a vocabulary of so many tokens.
    pub(super) fn new(vocabulary: u32) -> Self {
        Self {
            vocabulary,
            histories: BTreeMap::new(),
            nothing: History::new(0),
            taught: Acceptance::default(),
        }
    }

    /// Learns how a draft turned out that gave these tokens.
    pub(super) fn verified(&mut self, drafts: &mut RequestDrafts, given: &[u32], fed: Fed<'_>) {
        let likeliest = fed.likeliest;
        let fed = drafts.draft.leading(fed.tokens as usize);
        drafts.counts.steps += 1;
        drafts.counts.drafted_tokens += fed.len() as u32;
        drafts.counts.accepted_tokens += given.len().saturating_sub(1) as u32;
        let verified = Verified {
            draft: &fed,
            given,
            likeliest,
        };
        drafts.drafter.verified(verified, &mut self.taught);
    }

    /// Reads the next tokens of an answer, and drafts what may follow them, where `forced` are tokens that alone may do so;
    /// `other` is verified next in place of a draft. Returns how likely each token of the new draft is reached, in
    /// thousandths.
    pub(super) fn next(
        &mut self,
        (scope, drafts): (ScopeId, &mut RequestDrafts),
        (given, forced): (&[u32], &[u32]),
        other: Option<Draft>,
    ) -> Arc<[u16]> {
        let history = self.histories.get(&scope).unwrap_or(&self.nothing);
        for token in given {
            drafts.drafter.push(*token, history);
        }
        let beside = Beside {
            history,
            taught: &self.taught,
            forced,
        };
        let draft = other.unwrap_or_else(|| {
            let drafter = &drafts.drafter;
            drafter.draft(drafts.shape, DRAFT_TOKENS, &beside)
        });
        drafts.draft = draft.within(self.vocabulary);
        let mut least = u16::MAX;
        let reaches = drafts.draft.tokens().iter().map(|drafted| {
            least = least.min((drafted.reach * 1000.0) as u16);
            least
        });
        reaches.collect()
    }

    /// Keeps a finished answer for later requests of its scope.
    pub(super) fn keep(&mut self, scope: ScopeId, prompt: &[u32], answer: &[u32]) {
        if self.has_room_for(scope) {
            let history = self.histories.entry(scope);
            let history = history.or_insert_with(|| History::new(HISTORY_TOKENS));
            history.add(prompt, answer);
        }
    }

    /// Takes earlier answers of a scope, if none are kept for it: its requests may be reading those.
    pub(super) fn recall(&mut self, scope: ScopeId, history: History) {
        if self.has_room_for(scope) {
            self.histories.entry(scope).or_insert(history);
        }
    }

    fn has_room_for(&self, scope: ScopeId) -> bool {
        self.histories.len() < SCOPES || self.histories.contains_key(&scope)
    }
}

#[cfg(test)]
mod tests;
