//! The work on one answer's grammar, on a thread or in a process of its own: it receives steps and sends masks.

#![expect(
    clippy::disallowed_methods,
    reason = "whoever waits for the thread waits by the clock"
)]

use std::time::{Duration, Instant};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::super::GrammarState;
use super::scout::Scout;

/// Whether the thread looks ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// It reports the tokens that must come next.
    Look,
    /// It does not look ahead.
    Ignore,
}

/// A message to the thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Take this token, which was chosen.
    Take(u32, Ahead),
    /// Take the latest token back.
    Undo,
    /// Report how many of these drafted tokens may come next.
    Check(Vec<u32>),
}

/// The tokens that may come next, as a bit set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenMask {
    words: Vec<u32>,
    len: usize,
}

impl TokenMask {
    /// Creates the mask of `len` tokens; `None` if the number of words does not fit.
    pub(super) fn new(words: Vec<u32>, len: usize) -> Option<Self> {
        (words.len() == len.div_ceil(u32::BITS as usize)).then_some(Self { words, len })
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Returns the tokens that may come next.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let is_allowed = |token: &u32| self.words[*token as usize / 32] >> (token % 32) & 1 == 1;
        (0..self.len as u32).filter(is_allowed)
    }
}

impl From<SimpleVob> for TokenMask {
    fn from(mask: SimpleVob) -> Self {
        let len = mask.len();
        // The library pads masks to the processor's word size.
        let words = mask.as_slice().iter().copied();
        let words = words.take(len.div_ceil(u32::BITS as usize)).collect();
        Self { words, len }
    }
}

/// A message from the thread: a mask before each token, and the outcome of the token after it. Answers to checks of
/// drafts come between the two.
pub(super) enum Said {
    /// The tokens that may come next.
    Mask(anyhow::Result<TokenMask>),
    /// The number of drafted tokens that may come, one after the other.
    Checked(usize),
    /// The state of the grammar after the chosen token.
    Taken(anyhow::Result<Taken>),
}

/// The grammar after a token.
pub(super) struct Taken {
    pub(super) state: GrammarState,
    /// The tokens that must come next; empty if the thread does not look ahead.
    pub(super) forced: Vec<u32>,
}

/// The worker's end of the connection to the sampler.
pub(super) trait Ears {
    /// Receives the next step; `None` if the sampler is gone.
    fn next(&mut self) -> Option<Step>;

    /// Sends a message; `None` if the sampler is gone.
    fn say(&mut self, said: Said) -> Option<()>;
}

/// Makes masks and takes steps in turns, until the sampler is gone. The first mask may be given.
pub(super) fn say(mut matcher: Matcher, first: Option<TokenMask>, ears: &mut dyn Ears) {
    let mut first = first.map(Ok);
    let mut scout: Option<Scout> = None;
    // Ends when either side does.
    while let Some(()) = turn(&mut matcher, first.take(), &mut scout, ears) {}
}

/// Makes one mask, and takes the step after it.
fn turn(
    matcher: &mut Matcher,
    mask: Option<anyhow::Result<TokenMask>>,
    scout: &mut Option<Scout>,
    ears: &mut dyn Ears,
) -> Option<()> {
    let mask = mask.unwrap_or_else(|| matcher.compute_mask_or_eos().map(TokenMask::from));
    ears.say(Said::Mask(mask))?;
    let mut step = ears.next()?;
    while let Step::Check(tokens) = step {
        let admitted = check(scout.as_mut(), &tokens);
        ears.say(Said::Checked(admitted))?;
        step = ears.next()?;
    }
    let (token, ahead) = match step {
        Step::Take(token, ahead) => (token, ahead),
        Step::Undo => {
            if let Some(scout) = scout {
                scout.undo();
            }
            // If that fails, the next mask fails too.
            let _ = matcher.rollback(1);
            return Some(());
        }
        Step::Check(_) => return None,
    };
    let taken = matcher.consume_token(token);
    let is_stopped = matcher.is_stopped();
    let forced = match ahead {
        Ahead::Look => look(scout, matcher, token),
        Ahead::Ignore => Vec::new(),
    };
    let state = match is_stopped {
        true => GrammarState::Complete,
        false => GrammarState::Open,
    };
    ears.say(Said::Taken(taken.map(|()| Taken { state, forced })))
}

/// Returns the tokens that must come after the token that a matcher took. A slow scout is given up, since the sampler
/// waits for it.
fn look(scout: &mut Option<Scout>, matcher: &Matcher, token: u32) -> Vec<u32> {
    let begin = Instant::now();
    let scout = match scout {
        Some(scout) => {
            scout.take(token);
            scout
        }
        None => scout.insert(Scout::at(matcher)),
    };
    let forced = scout.forced();
    if begin.elapsed() > LOOK_MAX {
        scout.give_up();
    }
    forced
}

/// Returns the number of these tokens that may come, as far as a scout can tell.
fn check(scout: Option<&mut Scout>, tokens: &[u32]) -> usize {
    let begin = Instant::now();
    let Some(scout) = scout else {
        return tokens.len();
    };
    let admitted = scout.admitted(tokens);
    if begin.elapsed() > LOOK_MAX {
        scout.give_up();
    }
    admitted
}

/// The longest time that a look ahead may take. Chosen: some take 0.1 ms.
const LOOK_MAX: Duration = Duration::from_millis(10);
