//! Drafts for one request: reads its context and answer, guesses how it goes on, and learns from what was right.

use std::sync::Arc;

use heg_spec::policy::DraftPolicy;

use crate::acceptance::{Acceptance, Kind};
use crate::automaton::{Automaton, Match};
use crate::calibrated::{Calibrated, Likely};
use crate::draft::{Draft, Drafted, Source};
use crate::guess::{Guess, Texts};
use crate::history::{History, REREAD, Reader};
use crate::reuse::Rest;
use crate::tree;

/// Shape of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One token after the other.
    Chain,
    /// Several ways to go on.
    Tree,
}

/// What is drafted from beside the request itself.
#[derive(Debug, Clone, Copy)]
pub struct Beside<'a> {
    /// Earlier answers of the same client.
    pub history: &'a History,
    /// What all requests have taught.
    pub taught: &'a Acceptance,
    /// Tokens that alone may come next.
    pub forced: &'a [u32],
}

/// How a draft turned out.
#[derive(Debug, Clone, Copy)]
pub struct Verified<'a> {
    /// The draft, as far as it was verified.
    pub draft: &'a Draft,
    /// The tokens that the model gave: those that were drafted and the one after them.
    pub given: &'a [u32],
    /// Of a chain, whether each token is what the model found likeliest after those before it, as far as anybody looked
    /// behind the first wrong one; empty where nobody did.
    pub likeliest: &'a [bool],
}

/// The drafts of one request.
#[derive(Debug)]
pub struct Drafter {
    policy: DraftPolicy,
    context: Automaton,
    /// The latest tokens of the context.
    recent: Vec<u32>,
    history: Reader,
    prediction: Option<(Automaton, Match)>,
    calibrated: Option<Calibrated>,
    /// What has not come of a predicted answer.
    expected: Rest,
    /// What has not come of a rejected draft.
    reused: Rest,
    acceptance: Acceptance,
}

impl Drafter {
    /// Drafts for an answer after these tokens, of which nothing has been compared with a history yet, by the mechanisms
    /// that are on by default.
    pub fn new(context: &[u32]) -> Self {
        let mut automaton = Automaton::default();
        for token in context {
            automaton.push(*token);
        }
        let recent = context[context.len().saturating_sub(REREAD)..].to_vec();
        Self {
            policy: DraftPolicy::default(),
            context: automaton,
            recent,
            history: Reader::default(),
            prediction: None,
            calibrated: None,
            expected: Rest::default(),
            reused: Rest::default(),
            acceptance: Acceptance::default(),
        }
    }

    /// The same, by the mechanisms that a policy has on.
    pub fn under(self, policy: DraftPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Drafts from what the client expects the answer to be, too: its text from the first token on.
    pub fn expect(&mut self, answer: &[u32]) {
        let mut texts = Automaton::default();
        for token in answer {
            texts.push(*token);
        }
        texts.end_text();
        self.expected = Rest::of(Source::Prediction, answer);
        self.prediction = Some((texts, Match::NONE));
    }

    /// Drafts from what the model found likely after each token of the prompt, too, as far as that is known.
    pub fn calibrate(&mut self, prompt: &[u32], likely: Arc<[Likely]>) {
        self.calibrated = Some(Calibrated::new(prompt, likely));
    }

    /// Reads the answer's next token.
    pub fn push(&mut self, token: u32, history: &History) {
        self.context.push(token);
        if self.recent.len() >= 2 * REREAD {
            self.recent.drain(..REREAD);
        }
        self.recent.push(token);
        self.history.read(history, &self.recent);
        if let Some((texts, at)) = &mut self.prediction {
            *at = texts.advance(*at, token);
        }
        self.expected.read(token);
        self.reused.read(token);
    }

    /// A draft of at most so many tokens.
    pub fn draft(&self, shape: Shape, tokens_max: usize, beside: &Beside<'_>) -> Draft {
        let guesses = self.guesses(beside);
        match shape {
            Shape::Tree if self.policy.trees => tree::grow(&guesses, tokens_max, |kind| {
                self.probability(beside.taught, kind)
            }),
            Shape::Tree | Shape::Chain => self.chain(&guesses, tokens_max, beside.taught),
        }
    }

    /// Learns how a draft turned out.
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
                self.acceptance.learn(drafted.kind, is_right);
                taught.learn(drafted.kind, is_right);
            }
            match draft.child(at, *token) {
                Some(next) => at = Some(next),
                None => break,
            }
        }
        if !self.policy.reuse || !draft.is_chain() {
            return;
        }
        let accepted = given.len().saturating_sub(1);
        match Rest::after(draft, accepted, likeliest) {
            Some(rest) => self.reused = rest,
            None => self.reused.wait(),
        }
    }

    /// How likely a token of this kind is right.
    fn probability(&self, taught: &Acceptance, kind: Kind) -> f32 {
        match self.policy.learning {
            true => self.acceptance.probability(taught, kind),
            false => kind.guess(),
        }
    }

    /// All ways in which the answer may go on.
    fn guesses<'a>(&'a self, beside: &Beside<'a>) -> Vec<Guess<'a>> {
        let policy = self.policy;
        let texts = |source, automaton| Texts {
            source,
            automaton,
            by_frequency: policy.frequencies,
        };
        let forced = (policy.grammar && !beside.forced.is_empty()).then_some(Guess::Expected {
            source: Source::Forced,
            tokens: beside.forced,
            read: 0,
        });
        let expected = self.expected.guess().filter(|_| policy.prediction);
        let reused = self.reused.guess().filter(|_| policy.reuse);
        let context = policy.context.then(|| self.context.repeated());
        let context =
            context.and_then(|repeated| texts(Source::Context, &self.context).matched(repeated));
        let predicted = self.prediction.as_ref().filter(|_| policy.prediction);
        let predicted =
            predicted.and_then(|(answer, at)| texts(Source::Prediction, answer).matched(*at));
        let history = policy
            .history
            .then(|| self.history.matches(beside.history))
            .into_iter()
            .flatten();
        let history =
            history.filter_map(|(answers, at)| texts(Source::History, answers).matched(at));
        let calibrated = self.calibrated.iter().filter(|_| policy.calibration);
        let likely = calibrated.flat_map(|prompt| {
            let begin = prompt.beginnings(&self.recent).into_iter();
            begin.map(move |(at, read)| Guess::Likely { prompt, at, read })
        });
        let first = [forced, expected, reused, context, predicted];
        let first = first.into_iter().flatten();
        first.chain(history).chain(likely).collect()
    }

    /// The chain with the most tokens expected: the longer and likelier match wins.
    fn chain(&self, guesses: &[Guess<'_>], tokens_max: usize, taught: &Acceptance) -> Draft {
        let chains = guesses
            .iter()
            .flat_map(|guess| guess.and_shorter())
            .map(|guess| self.follow(guess, tokens_max, taught));
        let expected = |draft: &Draft| draft.expected_tokens();
        let better = |best: Draft, other: Draft| match expected(&other) > expected(&best) {
            true => other,
            false => best,
        };
        chains.fold(Draft::default(), better)
    }

    fn follow(&self, mut guess: Guess<'_>, tokens_max: usize, taught: &Acceptance) -> Draft {
        let mut draft = Draft::default();
        let mut reach = 1.0;
        while draft.len() < tokens_max {
            let Some(next) = guess.next().into_iter().next() else {
                break;
            };
            reach *= self.probability(taught, next.kind);
            let parent = draft.len().checked_sub(1).map(|parent| parent as u16);
            draft.push(Drafted {
                token: next.token,
                parent,
                reach,
                kind: next.kind,
            });
            guess = next.then;
        }
        draft
    }
}

#[cfg(test)]
mod tests;
