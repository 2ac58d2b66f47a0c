//! Drafts for one request: reads its context and answer, guesses how it goes on, and learns from what was right.

use crate::acceptance::Acceptance;
use crate::automaton::{Automaton, Match};
use crate::draft::{Draft, Drafted, Source};
use crate::guess::Guess;
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

/// The drafts of one request.
#[derive(Debug)]
pub struct Drafter {
    context: Automaton,
    /// The latest tokens of the context.
    recent: Vec<u32>,
    history: Reader,
    prediction: Option<(Automaton, Match)>,
    rest: Rest,
    acceptance: Acceptance,
}

impl Drafter {
    /// Drafts for an answer after these tokens, of which nothing has been compared with a history yet.
    pub fn new(context: &[u32]) -> Self {
        let mut automaton = Automaton::default();
        for token in context {
            automaton.push(*token);
        }
        let recent = context[context.len().saturating_sub(REREAD)..].to_vec();
        Self {
            context: automaton,
            recent,
            history: Reader::default(),
            prediction: None,
            rest: Rest::default(),
            acceptance: Acceptance::default(),
        }
    }

    /// Drafts from what the client expects the answer to be, too: its text from the first token on.
    pub fn expect(&mut self, answer: &[u32]) {
        let mut texts = Automaton::default();
        for token in answer {
            texts.push(*token);
        }
        texts.end_text();
        self.rest = Rest::of(Source::Prediction, answer);
        self.prediction = Some((texts, Match::NONE));
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
        self.rest.read(token);
    }

    /// A draft of at most so many tokens.
    pub fn draft(&self, shape: Shape, tokens_max: usize, beside: &Beside<'_>) -> Draft {
        let guesses = self.guesses(beside);
        match shape {
            Shape::Chain => self.chain(&guesses, tokens_max, beside.taught),
            Shape::Tree => tree::grow(&guesses, tokens_max, |kind| {
                self.acceptance.probability(beside.taught, kind)
            }),
        }
    }

    /// Learns how a draft turned out: `given` are the tokens that the model gave, those that were drafted and the one
    /// after them; `rejected` what it found likeliest after each further token of a chain.
    pub fn verified(
        &mut self,
        draft: &Draft,
        given: &[u32],
        rejected: &[u32],
        taught: &mut Acceptance,
    ) {
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
        let accepted = given.len().saturating_sub(1);
        if let Some(rest) = Rest::after(draft, accepted, rejected) {
            self.rest = rest;
        }
    }

    /// All ways in which the answer may go on.
    fn guesses<'a>(&'a self, beside: &Beside<'a>) -> Vec<Guess<'a>> {
        let forced = (!beside.forced.is_empty()).then_some(Guess::Expected {
            source: Source::Forced,
            tokens: beside.forced,
            read: 0,
        });
        let repeated = self.context.repeated();
        let context = Guess::matched(Source::Context, &self.context, repeated);
        let predicted = self.prediction.as_ref();
        let predicted =
            predicted.and_then(|(texts, at)| Guess::matched(Source::Prediction, texts, *at));
        let history = self.history.matches(beside.history);
        let history = history.filter_map(|(texts, at)| Guess::matched(Source::History, texts, at));
        let first = [forced, self.rest.guess(), context, predicted];
        first.into_iter().flatten().chain(history).collect()
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
            reach *= self.acceptance.probability(taught, next.kind);
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
