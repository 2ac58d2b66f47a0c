//! The thread of one answer's grammar: what is said to it, and what it says.

#![expect(
    clippy::disallowed_methods,
    reason = "whoever waits for the thread waits by the clock"
)]

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::super::GrammarState;
use super::scout::Scout;

/// Whether the thread looks ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// It says which tokens alone may come next.
    Look,
    /// Nobody wants to know.
    Ignore,
}

/// A message to the thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This token was chosen.
    Take(u32, Ahead),
    /// The last one was not, after all.
    Undo,
    /// These tokens are drafted: which of them may come?
    Check(Vec<u32>),
}

/// A message from the thread: a mask before each token, and behind it what became of the token. What was drafted is checked
/// between the two.
pub(super) enum Said {
    /// The tokens that may come next.
    Mask(anyhow::Result<SimpleVob>),
    /// How many of the drafted tokens may come, one after the other.
    Checked(usize),
    /// What may follow the chosen token.
    Taken(anyhow::Result<Taken>),
}

/// The grammar after a token.
pub(super) struct Taken {
    pub(super) state: GrammarState,
    /// Tokens that alone may come next; none where nobody wants to know.
    pub(super) forced: Vec<u32>,
}

/// The thread's work: masks and steps in turns, until nobody listens.
pub(super) fn say(mut matcher: Matcher, steps: &Receiver<Step>, saying: &Sender<Said>) {
    let mut scout: Option<Scout> = None;
    loop {
        let mask = matcher.compute_mask_or_eos();
        if saying.send(Said::Mask(mask)).is_err() {
            return;
        }
        let mut step = steps.recv();
        while let Ok(Step::Check(tokens)) = step {
            let admitted = check(scout.as_mut(), &tokens);
            if saying.send(Said::Checked(admitted)).is_err() {
                return;
            }
            step = steps.recv();
        }
        let (token, ahead) = match step {
            Ok(Step::Take(token, ahead)) => (token, ahead),
            Ok(Step::Undo) => {
                if let Some(scout) = &mut scout {
                    scout.undo();
                }
                // Where that fails, so does the next mask.
                let _ = matcher.rollback(1);
                continue;
            }
            Ok(Step::Check(_)) | Err(_) => return,
        };
        let taken = matcher.consume_token(token);
        let is_stopped = matcher.is_stopped();
        let forced = match ahead {
            Ahead::Look => look(&mut scout, &matcher, token),
            Ahead::Ignore => Vec::new(),
        };
        let state = match is_stopped {
            true => GrammarState::Complete,
            false => GrammarState::Open,
        };
        let taken = taken.map(|()| Taken { state, forced });
        if saying.send(Said::Taken(taken)).is_err() {
            return;
        }
    }
}

/// Tokens that alone may come after one that a matcher took. A scout that takes long is given up, since others wait for it.
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

/// How many of these tokens may come, as far as a scout sees that.
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

/// The longest that a look ahead may take. Chosen: some take 0.1 ms.
const LOOK_MAX: Duration = Duration::from_millis(10);
