//! The token masks of one answer, computed on a thread of their own: as soon as a token is chosen, the thread starts on
//! the next mask, while the model computes the next logits.
//!
//! Grammars come from untrusted clients, and a mask may take as long as the library's limits allow. The sampler waits
//! for a late mask only so long, both for a single one and over the whole answer; then the answer ends with an error,
//! and the other answers of the batch go on.

#![expect(
    clippy::disallowed_methods,
    reason = "a mask is made beside the caller, against the clock"
)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Matcher, ParserFactory};

use super::super::{GrammarState, Result, TextError};
use super::stuck;
use super::thread::{Ahead, Said, Step, Taken, say};

/// The mask thread of one answer.
pub(super) struct Masks {
    steps: Sender<Step>,
    said: Receiver<Said>,
    cancellation: CancellationHandle,
    /// The mask before the next token, once it is there.
    mask: Option<Result<SimpleVob>>,
    /// Whether what must come after a token is wanted.
    ahead: Ahead,
    /// Tokens that alone may come next.
    forced: Vec<u32>,
    patience: Patience,
}

/// Time that may be spent on waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Patience {
    left: Duration,
}

impl Masks {
    /// Compiles a grammar and waits for its first mask. The thread runs until this is dropped.
    ///
    /// # Errors
    /// The grammar cannot be compiled, or allows no first token.
    pub(super) fn start(
        factory: &Arc<ParserFactory>,
        source: impl FnOnce() -> anyhow::Result<TopLevelGrammar> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (compiled, outcome) = channel();
        let (steps, told) = channel();
        let (saying, said) = channel();
        let factory = Arc::clone(factory);
        let work = move || {
            let compile = || {
                catch_unwind(std::panic::AssertUnwindSafe(|| {
                    factory.create_parser(source()?)
                }))
            };
            let matcher = match compile() {
                Ok(parser) => Matcher::new(Ok(parser)).into_cancellable(),
                Err(error) => return drop(compiled.send(Err(error))),
            };
            let _ = compiled.send(Ok(matcher.cancellation_handle().unwrap_or_default()));
            say(matcher, &told, &saying);
        };
        let thread = std::thread::Builder::new().name("masks".to_owned());
        thread.stack_size(STACK_BYTES).spawn(work)?;
        let outcome = outcome.recv();
        let cancellation =
            outcome.map_err(|_| anyhow::anyhow!("the library stopped at this input"))??;
        let mut masks = Self {
            steps,
            said,
            cancellation,
            mask: None,
            ahead: Ahead::Ignore,
            forced: Vec::new(),
            patience: Patience {
                left: FIRST_WAIT_MAX,
            },
        };
        // Nobody else waits yet: a form without a first token is refused as a form.
        masks.hear_mask(FIRST_WAIT_MAX)?;
        masks.mask()?;
        masks.patience.left = PATIENCE_MAX;
        Ok(masks)
    }

    /// Begins to look ahead: what is [`forced`](Self::forced) is known after each token from now on.
    pub(super) fn look_ahead(&mut self) {
        self.ahead = Ahead::Look;
    }

    /// Tokens that alone may come after the latest one, as far as they are known.
    pub(super) fn forced(&self) -> &[u32] {
        &self.forced
    }

    /// The tokens that may come next.
    ///
    /// # Errors
    /// `Restriction`, where none may, or where it is not known in time.
    pub(super) fn mask(&mut self) -> Result<&SimpleVob> {
        if self.mask.is_none() {
            self.hear_mask(self.patience.next())?;
        }
        match &self.mask {
            Some(Ok(mask)) => Ok(mask),
            Some(Err(error)) => Err(error.clone()),
            None => Err(out_of_turn()),
        }
    }

    /// How many of these tokens may come next, one after the other; all of them where that is not known soon.
    pub(super) fn admitted(&mut self, tokens: &[u32]) -> usize {
        if self.ahead == Ahead::Ignore || !self.has_mask_soon() {
            return tokens.len();
        }
        let _ = self.steps.send(Step::Check(tokens.to_vec()));
        match self.hear(self.patience.next()) {
            Ok(Said::Checked(admitted)) => admitted,
            _ => tokens.len(),
        }
    }

    fn has_mask_soon(&mut self) -> bool {
        if self.mask.is_none()
            && let Ok(Said::Mask(mask)) = self.said.recv_timeout(SOON)
        {
            self.mask = Some(mask.map_err(|error| stuck(&error)));
        }
        matches!(self.mask, Some(Ok(_)))
    }

    fn hear_mask(&mut self, wait: Duration) -> Result<()> {
        match self.hear(wait)? {
            Said::Mask(mask) => {
                self.mask = Some(mask.map_err(|error| stuck(&error)));
                Ok(())
            }
            Said::Taken(_) | Said::Checked(_) => Err(out_of_turn()),
        }
    }

    /// Takes the token that was chosen, and begins the next mask.
    ///
    /// # Errors
    /// `Restriction`, where the token was forbidden, or where what may follow it is not known in time.
    pub(super) fn take(&mut self, token: u32) -> Result<GrammarState> {
        // Also where nobody asked for the mask.
        self.mask()?;
        self.mask = None;
        // A thread that has ended is noticed when it is listened to.
        self.forced.clear();
        let _ = self.steps.send(Step::Take(token, self.ahead));
        match self.hear(self.patience.next())? {
            Said::Taken(taken) => {
                let Taken { state, forced } = taken.map_err(|error| stuck(&error))?;
                self.forced = forced;
                Ok(state)
            }
            Said::Mask(_) | Said::Checked(_) => Err(out_of_turn()),
        }
    }

    /// Takes back the token that was taken last, and begins the mask before it anew.
    ///
    /// # Errors
    /// `Restriction`, where the mask after it is not known in time; where nothing can be taken back, the next
    /// [`mask`](Self::mask) says so.
    pub(super) fn undo(&mut self) -> Result<()> {
        self.mask()?;
        self.mask = None;
        self.forced.clear();
        let _ = self.steps.send(Step::Undo);
        Ok(())
    }

    fn hear(&mut self, wait: Duration) -> Result<Said> {
        let begin = Instant::now();
        let said = self.said.recv_timeout(wait);
        self.patience.waited(begin.elapsed());
        said.map_err(|error| {
            self.cancellation.cancel();
            let message = match error {
                RecvTimeoutError::Timeout => {
                    "it takes too long to find out which tokens may come next; use a simpler form"
                }
                RecvTimeoutError::Disconnected => "the library stopped at this form",
            };
            TextError::Restriction {
                message: message.to_owned(),
            }
        })
    }
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masks")
            .field("patience", &self.patience)
            .finish()
    }
}

impl Drop for Masks {
    /// Cancels the mask under way; the thread then ends.
    fn drop(&mut self) {
        self.cancellation.cancel();
    }
}

impl Patience {
    /// The maximum wait for the next message.
    fn next(self) -> Duration {
        WAIT_MAX.min(self.left)
    }

    /// Counts time that was waited before a token.
    fn waited(&mut self, time: Duration) {
        self.left = (self.left.saturating_sub(time) + WAIT_PER_STEP).min(PATIENCE_MAX);
    }
}

fn out_of_turn() -> TextError {
    TextError::Restriction {
        message: "masks came out of turn; this is a bug".to_owned(),
    }
}

/// The longest that the others of a batch wait for a mask, or for a token to be taken. Chosen: the library's limits end
/// a step after some 50 ms of computing, but on a busy machine its thread waits for a core too, which is no fault of the
/// form's.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The longest wait for the first mask, which is made where nobody else waits. Chosen.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(2);

/// What all waits of an answer may take, beyond what each step may. Chosen.
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// The longest that a draft waits for a mask, without which it is not checked. Chosen: what a row more costs a small model.
const SOON: Duration = Duration::from_micros(300);

/// What each step may wait without its being counted: two a token. Chosen.
const WAIT_PER_STEP: Duration = Duration::from_millis(1);

/// The compiler recurses along references; reserved, and touched only where it does.
const STACK_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Special;

    /// Masks from a thread that says nothing, unless the test does.
    fn silent() -> (Masks, Sender<Said>, Receiver<Step>) {
        let (steps, told) = channel();
        let (saying, said) = channel();
        let masks = Masks {
            steps,
            said,
            cancellation: CancellationHandle::default(),
            mask: None,
            ahead: Ahead::Ignore,
            forced: Vec::new(),
            patience: Patience { left: PATIENCE_MAX },
        };
        (masks, saying, told)
    }

    /// The lane goes on, and the thread is told to.
    #[test]
    fn a_mask_that_does_not_come_is_an_error() {
        let (mut masks, saying, _told) = silent();
        let begin = Instant::now();
        let error = masks.mask().unwrap_err().to_string();
        assert!(begin.elapsed() >= WAIT_MAX && begin.elapsed() < 30 * WAIT_MAX);
        assert!(
            error.contains("takes too long") && error.contains("simpler form"),
            "{error}"
        );
        assert!(masks.cancellation.is_cancelled());
        drop(saying);
        assert!(masks.mask().unwrap_err().to_string().contains("stopped"));
    }

    #[test]
    fn a_token_that_is_not_taken_in_time_is_an_error() {
        let (mut masks, saying, told) = silent();
        saying.send(Said::Mask(Ok(SimpleVob::alloc(8)))).unwrap();
        let error = masks.take(3).unwrap_err().to_string();
        assert!(error.contains("takes too long"), "{error}");
        assert_eq!(told.recv(), Ok(Step::Take(3, Ahead::Ignore)));
    }

    /// Without being asked for: while the model computes.
    #[test]
    fn the_next_mask_begins_with_its_token() {
        let grammars = super::super::tests::grammars();
        let mut grammar = grammars.regex("[a-c]+").unwrap();
        let allowed = grammar.masks.mask().unwrap().iter().next().unwrap();
        assert_eq!(grammar.masks.take(allowed), Ok(GrammarState::Open));
        let said = grammar.masks.said.recv_timeout(Duration::from_secs(60));
        assert!(matches!(said, Ok(Said::Mask(Ok(_)))));
    }

    /// However often a token is taken back, also the last one.
    #[test]
    fn a_token_that_is_taken_back_leaves_no_trace() {
        let grammars = super::super::tests::grammars();
        let masks = |given_up: usize| {
            let mut grammar = grammars.regex("[a-c]d[ef]").unwrap();
            let mut answer = Vec::new();
            loop {
                let mask = grammar.masks.mask().unwrap().clone();
                let allowed: Vec<u32> = mask.iter().collect();
                for at in 0..given_up {
                    let _ = grammar.masks.take(allowed[at % allowed.len()]).unwrap();
                    grammar.masks.undo().unwrap();
                }
                assert_eq!(grammar.masks.mask().unwrap().as_slice(), mask.as_slice());
                let taken = grammar.masks.take(allowed[0]).unwrap();
                answer.push((allowed, taken));
                if taken == GrammarState::Complete {
                    return answer;
                }
            }
        };
        assert_eq!(masks(0), masks(1));
        assert_eq!(masks(0), masks(4));
    }

    /// And masks are what they are for those who do not look ahead.
    #[test]
    fn what_must_come_is_known_ahead() {
        let grammars = super::super::tests::grammars();
        let tokenizer = crate::tokenizer::tests::tiny_agent();
        let bytes = |tokens: &[u32]| -> Vec<u8> {
            let bytes = tokens.iter().map(|token| tokenizer.token_bytes(*token));
            bytes.flatten().flatten().collect()
        };
        let answer = |is_ahead: bool| {
            let mut masks = grammars.regex("(a|b)reminder at noon[0-9]x").unwrap().masks;
            if is_ahead {
                masks.look_ahead();
            }
            let (mut tokens, mut seen, mut forced) = (Vec::new(), Vec::new(), Vec::new());
            loop {
                let mask = masks.mask().unwrap().clone();
                let token = mask.iter().next().unwrap();
                seen.push(mask);
                tokens.push(token);
                let state = masks.take(token).unwrap();
                forced.push((bytes(&tokens).len(), bytes(masks.forced())));
                if state == GrammarState::Complete {
                    return (bytes(&tokens), seen, forced);
                }
            }
        };
        let (text, seen, forced) = answer(true);
        assert!(
            forced.iter().any(|(_, forced)| forced.len() > 3),
            "{forced:?}"
        );
        for (at, forced) in forced {
            assert!(text[at..].starts_with(&forced), "{forced:?} at {at}");
        }
        let (same_text, same_seen, nothing) = answer(false);
        assert_eq!((text, seen), (same_text, same_seen));
        assert!(nothing.iter().all(|(_, forced)| forced.is_empty()));
    }

    #[test]
    fn drafts_are_admitted_as_far_as_the_grammar_goes() {
        let grammars = super::super::tests::grammars();
        let tokenizer = crate::tokenizer::tests::tiny_agent();
        let tokens = |text: &str| tokenizer.encode(text, Special::AsWritten).unwrap();
        let mut masks = grammars.regex("ab[cd] (and|or) more").unwrap().masks;
        masks.look_ahead();
        assert_eq!(masks.take(tokens("a")[0]), Ok(GrammarState::Open));
        let mut admitted = |draft: &[u32]| {
            // Where it is not there yet, drafts are not checked.
            masks.mask().unwrap();
            masks.admitted(draft)
        };
        let right = tokens("bc or more");
        assert_eq!(admitted(&right), right.len());
        let wrong = [&right[..2], &tokens("!!!")].concat();
        assert_eq!(admitted(&wrong), 2);
        assert_eq!(admitted(&[u32::MAX]), 0);
        assert_eq!(admitted(&[]), 0);
        // They were asked about, and not taken.
        assert_eq!(masks.take(right[0]), Ok(GrammarState::Open));
    }

    /// Whoever drops an answer leaves no thread behind.
    #[test]
    fn the_thread_ends_with_its_answer() {
        let (steps, told) = channel();
        let (saying, said) = channel::<Said>();
        let grammars = super::super::tests::grammars();
        let parser = grammars
            .factory
            .create_parser(TopLevelGrammar::from_regex("a+"));
        let matcher = Matcher::new(parser).into_cancellable();
        let thread = std::thread::spawn(move || say(matcher, &told, &saying));
        drop((steps, said));
        thread.join().unwrap();
    }

    #[test]
    fn waits_are_bounded_once_and_together() {
        let mut patience = Patience { left: PATIENCE_MAX };
        patience.waited(Duration::ZERO);
        assert_eq!(patience.next(), WAIT_MAX);
        let mut waited = Duration::ZERO;
        for _ in 0..100 {
            waited += patience.next();
            patience.waited(patience.next());
        }
        assert!(patience.next() <= WAIT_PER_STEP);
        assert!(waited <= PATIENCE_MAX + 101 * WAIT_PER_STEP, "{waited:?}");
        for _ in 0..4000 {
            patience.waited(Duration::ZERO);
        }
        assert_eq!(patience.next(), WAIT_MAX, "ordinary steps earn it back");
    }
}
