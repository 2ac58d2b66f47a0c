//! Drafts of answers: the conductor's guesses of a request's next tokens, for a lane to verify (sd.npu §4.1).
//!
//! A lane chooses tokens along a draft as it would without one, so drafts change the speed of an answer and not its
//! content.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::learnt::{HISTORY_TOKENS, Learnt, Limits};
use super::request::ScopeId;
use crate::history::PastAnswers;
use heg_draft::{
    Draft, DraftSource, DraftSources, Drafter, History, Likely, RequestTexts, Shape, Verified,
};
use heg_spec::policy::DraftPolicy;

/// The form of drafts, if answers are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// No drafts: answers are decoded token by token.
    #[default]
    Off,
    /// A chain of tokens, as long as they are likely to pay.
    Chain,
    /// A tree of tokens; its first chain where attention takes no trees.
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
    /// Drafted tokens that became part of the answer.
    pub accepted_tokens: u32,
}

impl DraftCounts {
    /// Drafted tokens that were rejected.
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

/// Numbers of drafted tokens of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceCounts {
    /// Tokens that were verified.
    pub drafted: u64,
    /// Tokens that became part of an answer.
    pub accepted: u64,
}

/// The state from which drafts of all requests are made.
pub(super) struct Drafting {
    vocabulary: u32,
    learnt: Learnt,
    sources: BTreeMap<DraftSource, SourceCounts>,
}

/// Most tokens of a draft: with the token before them, the rows of the smallest chunk of an NPU's kernels.
const DRAFT_TOKENS: usize = 31;

/// Returns a history of answers, the oldest first.
pub(super) fn history_of(answers: &PastAnswers) -> History {
    let mut history = History::new(HISTORY_TOKENS);
    for past in answers.iter() {
        history.add(&past.prompt_end, &past.answer);
    }
    history
}

/// The texts that answers to a request are drafted from, as made by
/// [`Engine::draft_texts`](super::Engine::draft_texts).
#[derive(Debug, Clone)]
pub struct DraftTexts(Box<RequestTexts>);

impl DraftTexts {
    /// Makes the texts for one answer.
    pub(super) fn new(prompt: &[u32], prediction: &[u32]) -> Self {
        Self(RequestTexts::new(prompt, prediction).into())
    }

    /// Makes texts for several answers, whose copies share the prompt's memory.
    pub(super) fn shared(self) -> Self {
        Self(self.0.shared().into())
    }

    /// Memory that they take, in bytes; copies for further answers take next to nothing until these have tokens.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// The drafts of one request.
pub(super) struct RequestDrafts {
    drafter: Drafter,
    shape: Shape,
    /// The tokens expected after the answer so far.
    draft: Draft,
    counts: DraftCounts,
}

impl RequestDrafts {
    /// Makes the drafts for one of the answers to a request.
    pub(super) fn new(texts: DraftTexts, shape: Shape, policy: DraftPolicy) -> Self {
        Self {
            drafter: Drafter::of(*texts.0).under(policy),
            shape,
            draft: Draft::default(),
            counts: DraftCounts::default(),
        }
    }

    /// Returns the likeliest tokens of the draft.
    pub(super) fn leading(&self, tokens: u32) -> DraftTokens {
        DraftTokens::of(&self.draft.leading(tokens as usize).depth_first())
    }

    /// Uses the tokens that the model found likely in the prompt for drafts, too.
    pub(super) fn calibrate(&mut self, prompt: &[u32], likely: Arc<[Likely]>) {
        self.drafter.calibrate(prompt, likely);
    }

    pub(super) fn counts(&self) -> DraftCounts {
        self.counts
    }
}

/// The result of verifying a draft, apart from the tokens that it gave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fed<'a> {
    /// Number of leading tokens of the draft that were verified.
    pub(super) tokens: u32,
    /// Whether each drafted token is the model's likeliest, as in [`Verified`].
    pub(super) likeliest: &'a [bool],
}

/// Drafted tokens in the order in which a lane verifies them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DraftTokens {
    tokens: Vec<u32>,
    /// The row that each token follows; `None` if each follows the one before it. The answer's last token has row 0,
    /// and the first drafted one row 1.
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

    /// Returns the tokens if each follows the one before it.
    pub(super) fn chain(&self) -> Option<&[u32]> {
        (!self.is_tree()).then_some(&self.tokens)
    }

    /// Keeps only the first tokens of a chain; returns the number of those cut.
    pub(super) fn cut(&mut self, tokens: usize) -> u32 {
        let drafted = self.tokens.len();
        self.tokens.truncate(tokens);
        (drafted - self.tokens.len()) as u32
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether some token has several successors.
    pub(super) fn is_tree(&self) -> bool {
        self.follows.is_some()
    }

    /// Returns all tokens if `takes_trees`, else only the first chain.
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

/// The drafted tokens that are verified.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DraftRows<'a> {
    pub(super) tokens: &'a [u32],
    /// The row that each token follows, as in [`DraftTokens`].
    pub(super) follows: Option<&'a [u16]>,
}

impl DraftRows<'_> {
    /// Returns the row of `token` among the successors of `row`, if it is drafted.
    pub(super) fn next(self, row: usize, token: u32) -> Option<usize> {
        let mut after = self.after(row);
        let at = after.find(|(_, drafted)| *drafted == token);
        at.map(|(at, _)| at + 1)
    }

    /// Returns the tokens drafted after `row`, each with its place among all.
    pub(super) fn after(self, row: usize) -> impl Iterator<Item = (usize, u32)> {
        let follows = move |at: usize| match self.follows {
            Some(follows) => follows.get(at).map(|before| usize::from(*before)),
            None => Some(at),
        };
        let rows = self.tokens.iter().copied().enumerate().skip(row);
        rows.filter(move |(at, _)| follows(*at) == Some(row))
    }
}

impl Drafting {
    /// Makes the state for a model with a vocabulary of `vocabulary` tokens.
    pub(super) fn new(vocabulary: u32) -> Self {
        Self {
            vocabulary,
            learnt: Learnt::new(Limits::default()),
            sources: BTreeMap::new(),
        }
    }

    /// Learns from the verification of a draft of a scope's request that gave these tokens.
    pub(super) fn verified(
        &mut self,
        scope: ScopeId,
        drafts: &mut RequestDrafts,
        given: &[u32],
        fed: Fed<'_>,
    ) {
        let likeliest = fed.likeliest;
        // In the order in which lanes had them.
        let fed = drafts.draft.leading(fed.tokens as usize).depth_first();
        self.count(&fed, given);
        drafts.counts.steps += 1;
        drafts.counts.drafted_tokens += fed.len() as u32;
        drafts.counts.accepted_tokens += given.len().saturating_sub(1) as u32;
        let verified = Verified {
            draft: &fed,
            given,
            likeliest,
        };
        let lessons = self.learnt.of(scope);
        drafts.drafter.verified(verified, &mut lessons.taught);
    }

    /// Counts the tokens of a draft that were verified, and those that are given, by where they came from.
    fn count(&mut self, fed: &Draft, given: &[u32]) {
        for drafted in fed.tokens() {
            self.sources.entry(drafted.source()).or_default().drafted += 1;
        }
        let mut at = None;
        for token in given {
            let Some(next) = fed.child(at, *token) else {
                break;
            };
            if let Some(drafted) = fed.tokens().get(usize::from(next)) {
                self.sources.entry(drafted.source()).or_default().accepted += 1;
            }
            at = Some(next);
        }
    }

    /// Numbers of drafted tokens since the start, by where they came from.
    pub(super) fn sources(&self) -> &BTreeMap<DraftSource, SourceCounts> {
        &self.sources
    }

    /// Reads the next tokens of an answer, and drafts the tokens that may follow them. `forced` are the only tokens
    /// that the grammar allows next; `other` is verified next in place of a draft. Returns the probability that each
    /// token of the new draft is reached, in thousandths.
    pub(super) fn next(
        &mut self,
        (scope, drafts): (ScopeId, &mut RequestDrafts),
        (given, forced): (&[u32], &[u32]),
        other: Option<Draft>,
    ) -> Arc<[u16]> {
        let lessons = self.learnt.of(scope);
        for token in given {
            drafts.drafter.push(*token, &lessons.history);
        }
        let sources = DraftSources {
            history: &lessons.history,
            taught: &lessons.taught,
            forced,
        };
        let draft = other.unwrap_or_else(|| {
            let drafter = &drafts.drafter;
            drafter.draft(drafts.shape, DRAFT_TOKENS, &sources)
        });
        drafts.draft = draft.within(self.vocabulary);
        let mut least = u16::MAX;
        let reaches = drafts.draft.tokens().iter().map(|drafted| {
            least = least.min((drafted.path_probability * 1000.0) as u16);
            least
        });
        reaches.collect()
    }

    /// Keeps a finished answer for later requests of its scope.
    pub(super) fn keep(&mut self, scope: ScopeId, prompt: &[u32], answer: &[u32]) {
        self.learnt.keep(scope, prompt, answer);
    }

    /// Takes in earlier answers of a scope, if none are kept for it.
    pub(super) fn recall(&mut self, scope: ScopeId, history: History) {
        self.learnt.recall(scope, history);
    }
}

#[cfg(test)]
mod tests;
