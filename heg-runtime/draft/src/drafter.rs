//! The drafter of one request: reads its context and answer, predicts the continuation, and learns from each
//! verification.

use std::sync::Arc;

use heg_spec::policy::DraftPolicy;

use crate::acceptance::{Acceptance, AcceptanceBucket};
use crate::automaton::{Automaton, Match};
use crate::calibrated::{Calibrated, Likely};
use crate::draft::{Draft, DraftSource, Drafted};
use crate::guess::{Guess, Texts};
use crate::history::{History, REREAD, Reader};
use crate::remainder::Remainder;
use crate::texts::{Predicted, RequestTexts};
use crate::tree;

/// Shape of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A single sequence.
    Chain,
    /// A tree of alternative branches.
    Tree,
}

/// Sources of drafts outside the request itself.
#[derive(Debug, Clone, Copy)]
pub struct DraftSources<'a> {
    /// Earlier answers of the same client.
    pub history: &'a History,
    /// Acceptance rates learnt from requests of the same client.
    pub taught: &'a Acceptance,
    /// The next tokens, as the grammar forces them; empty: it leaves a choice.
    pub forced: &'a [u32],
}

/// Result of verifying a draft.
#[derive(Debug, Clone, Copy)]
pub struct Verified<'a> {
    /// The verified part of the draft.
    pub draft: &'a Draft,
    /// Tokens that the model gave: the accepted ones and the one after them.
    pub given: &'a [u32],
    /// Whether each token is the likeliest one after those before it, up to the last that was compared, of those that are
    /// not given. Empty: nothing was compared.
    pub likeliest: &'a [bool],
}

/// The drafts of one request.
#[derive(Debug)]
pub struct Drafter {
    policy: DraftPolicy,
    context: Automaton,
    /// Latest tokens of the context, at least [`REREAD`] of them once there are that many.
    recent: Vec<u32>,
    history: Reader,
    prediction: Option<(Arc<Predicted>, Match)>,
    calibrated: Option<Calibrated>,
    /// Unread part of the predicted answer.
    expected: Remainder,
    /// Unread part of a rejected draft.
    reused: Remainder,
    acceptance: Acceptance,
}

impl Drafter {
    /// A drafter for an answer to `context`, with the default policy.
    pub fn new(context: &[u32]) -> Self {
        Self::of(RequestTexts::new(context, &[]))
    }

    /// A drafter for one of the answers to a request, with the default policy.
    pub fn of(texts: RequestTexts) -> Self {
        let RequestTexts {
            context,
            recent,
            prediction,
        } = texts;
        let tokens = prediction.as_ref().map(|it| Arc::clone(&it.tokens));
        Self {
            policy: DraftPolicy::default(),
            context,
            recent,
            history: Reader::default(),
            expected: tokens.map_or_else(Remainder::default, |tokens| {
                Remainder::of(DraftSource::Prediction, tokens)
            }),
            prediction: prediction.map(|it| (it, Match::NONE)),
            calibrated: None,
            reused: Remainder::default(),
            acceptance: Acceptance::default(),
        }
    }

    /// Memory that this answer adds to the texts that it shares with others, in bytes.
    pub fn own_bytes(&self) -> usize {
        self.context.own_bytes()
    }

    /// The same drafter under another policy.
    pub fn under(self, policy: DraftPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Also drafts from the tokens that the model found likely after each token of `prompt`; `likely` may be shorter
    /// than the prompt.
    pub fn calibrate(&mut self, prompt: &[u32], likely: Arc<[Likely]>) {
        self.calibrated = Some(Calibrated::new(prompt, likely));
    }

    /// Reads the next token of the answer.
    pub fn push(&mut self, token: u32, history: &History) {
        self.context.push(token);
        if self.recent.len() >= 2 * REREAD {
            self.recent.drain(..REREAD);
        }
        self.recent.push(token);
        self.history.read(history, &self.recent);
        if let Some((predicted, at)) = &mut self.prediction {
            *at = predicted.texts.advance(*at, token);
        }
        self.expected.read(token);
        self.reused.read(token);
    }

    /// Drafts at most `tokens_max` tokens.
    pub fn draft(&self, shape: Shape, tokens_max: usize, sources: &DraftSources<'_>) -> Draft {
        let guesses = self.guesses(sources);
        match shape {
            Shape::Tree => tree::grow(&guesses, tokens_max, |bucket| {
                self.probability(sources.taught, bucket)
            }),
            Shape::Chain => self.chain(&guesses, tokens_max, sources.taught),
        }
    }

    /// Learns from a verification, for this request and in `taught` for its client.
    pub fn verified(&mut self, verified: Verified<'_>, taught: &mut Acceptance) {
        let Verified {
            draft,
            given,
            likeliest,
        } = verified;
        let mut at = None;
        for token in given {
            for drafted in draft.children(at) {
                let is_right = drafted.token == *token;
                self.acceptance.learn(drafted.bucket, is_right);
                taught.learn(drafted.bucket, is_right);
            }
            match draft.child(at, *token) {
                Some(next) => at = Some(next),
                None => break,
            }
        }
        if !self.policy.reuse {
            return;
        }
        let accepted = given.len().saturating_sub(1);
        match Remainder::after(draft, accepted, likeliest) {
            Some(rest) => self.reused = rest,
            None => self.reused.wait(),
        }
    }

    /// Acceptance probability of a token of this bucket.
    fn probability(&self, taught: &Acceptance, bucket: AcceptanceBucket) -> f32 {
        if self.policy.learning {
            self.acceptance.probability(taught, bucket)
        } else {
            bucket.guess()
        }
    }

    /// All predictors that apply at the current position.
    fn guesses<'a>(&'a self, sources: &DraftSources<'a>) -> Vec<Guess<'a>> {
        let policy = self.policy;
        let texts = |source, automaton| Texts {
            source,
            automaton,
            by_frequency: policy.frequencies,
        };
        let forced = (policy.grammar && !sources.forced.is_empty()).then_some(Guess::Expected {
            source: DraftSource::Forced,
            tokens: sources.forced,
            read: 0,
        });
        let expected = self.expected.guess().filter(|_| policy.prediction);
        let reused = self.reused.guess().filter(|_| policy.reuse);
        let repeated = policy.context.then(|| self.context.repeated());
        let context =
            repeated.and_then(|at| texts(DraftSource::Context, &self.context).matched(at));
        let prediction = self.prediction.as_ref().filter(|_| policy.prediction);
        let predicted =
            prediction.and_then(|(it, at)| texts(DraftSource::Prediction, &it.texts).matched(*at));
        let matches = policy
            .history
            .then(|| self.history.matches(sources.history));
        let matches = matches.into_iter().flatten();
        let history =
            matches.filter_map(|(answers, at)| texts(DraftSource::History, answers).matched(at));
        let calibrated = self.calibrated.iter().filter(|_| policy.calibration);
        let likely = calibrated.flat_map(|prompt| {
            let begin = prompt.beginnings(&self.recent).into_iter();
            begin.map(move |(at, read)| Guess::Likely { prompt, at, read })
        });
        let single = [forced, expected, reused, context, predicted];
        let guesses = single.into_iter().flatten();
        guesses.chain(history).chain(likely).collect()
    }

    /// The chain with the most expected tokens: a longer and likelier match wins.
    fn chain(&self, guesses: &[Guess<'_>], tokens_max: usize, taught: &Acceptance) -> Draft {
        let chains = guesses
            .iter()
            .flat_map(|guess| guess.and_shorter())
            .map(|guess| self.follow(guess, tokens_max, taught));
        let longer = |best: Draft, other: Draft| {
            if other.expected_tokens() > best.expected_tokens() {
                other
            } else {
                best
            }
        };
        chains.fold(Draft::default(), longer)
    }

    fn follow(&self, mut guess: Guess<'_>, tokens_max: usize, taught: &Acceptance) -> Draft {
        let mut draft = Draft::default();
        let mut path_probability = 1.0;
        while draft.len() < tokens_max {
            let Some(next) = guess.next().into_iter().next() else {
                break;
            };
            path_probability *= self.probability(taught, next.bucket);
            let parent = draft.len().checked_sub(1).map(|parent| parent as u16);
            draft.push(Drafted {
                token: next.token,
                parent,
                path_probability,
                bucket: next.bucket,
            });
            guess = next.then;
        }
        draft
    }
}

#[cfg(test)]
mod tests;
