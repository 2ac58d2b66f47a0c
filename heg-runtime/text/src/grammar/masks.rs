//! The token masks of one answer, computed on a separate thread, or in the process that compiled the form: as soon as a
//! token is chosen, work on the next mask begins, while the model computes the next logits.
//!
//! Grammars come from untrusted clients, and a mask may take as long as the library's limits allow. The sampler's wait
//! for late masks is bounded, both for a single mask and over the whole answer; then the answer ends with an error, and
//! the other answers of the batch go on.

#![expect(
    clippy::disallowed_methods,
    reason = "a mask is made beside the caller, against the clock"
)]

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use llguidance::panic_utils::catch_unwind;
use llguidance::{Matcher, ParserFactory};

use super::super::{GrammarState, Result, TextError};
use super::maker::{Channels, Maker};
use super::stuck;
use super::thread::{Ahead, Said, Step, Taken, TokenMask, say};
use super::wire::{FrameLink, Silence};

/// The masks of one answer, and the connection to their maker.
pub(super) struct Masks {
    maker: Maker,
    /// The mask for the next token, once it has arrived.
    mask: Option<Result<TokenMask>>,
    /// Whether the tokens that must follow a chosen token are wanted.
    ahead: Ahead,
    /// The forced tokens: those that must come next.
    forced: Vec<u32>,
    patience: Patience,
}

/// The time that may be spent on waiting.
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
            let steps = told;
            say(matcher, None, &mut Channels { steps, saying });
        };
        let thread = std::thread::Builder::new().name("masks".to_owned());
        thread.stack_size(STACK_BYTES).spawn(work)?;
        let outcome = outcome.recv();
        let cancellation =
            outcome.map_err(|_| anyhow::anyhow!("the library stopped at this input"))??;
        Ok(Self::from_maker(Maker::Thread {
            steps,
            said,
            cancellation,
        })?)
    }

    /// Waits for the first mask of a form that was compiled in another process. The process runs until this is dropped.
    ///
    /// # Errors
    /// `Restriction`, if the mask does not arrive.
    pub(super) fn over(link: Box<dyn FrameLink>) -> Result<Self> {
        Self::from_maker(Maker::Process(link))
    }

    fn from_maker(maker: Maker) -> Result<Self> {
        let mut masks = Self {
            maker,
            mask: None,
            ahead: Ahead::Ignore,
            forced: Vec::new(),
            patience: Patience {
                left: FIRST_WAIT_MAX,
            },
        };
        // No other request waits yet, and a form without a first token is refused as a form.
        masks.hear_mask(FIRST_WAIT_MAX)?;
        masks.mask()?;
        masks.patience.left = PATIENCE_MAX;
        Ok(masks)
    }

    /// Turns looking ahead on: from now on, the [`forced`](Self::forced) tokens are known after each token.
    pub(super) fn look_ahead(&mut self) {
        self.ahead = Ahead::Look;
    }

    /// Returns the tokens that must come after the latest one, as far as they are known.
    pub(super) fn forced(&self) -> &[u32] {
        &self.forced
    }

    /// Returns the tokens that may come next.
    ///
    /// # Errors
    /// `Restriction`, if there are none, or if they are not known in time.
    pub(super) fn mask(&mut self) -> Result<&TokenMask> {
        if self.mask.is_none() {
            self.hear_mask(self.patience.next())?;
        }
        match &self.mask {
            Some(Ok(mask)) => Ok(mask),
            Some(Err(error)) => Err(error.clone()),
            None => Err(out_of_turn()),
        }
    }

    /// Returns the number of these tokens that may come next, one after the other; all of them if that is not known
    /// soon.
    pub(super) fn admitted(&mut self, tokens: &[u32]) -> usize {
        if self.ahead == Ahead::Ignore || !self.has_mask_soon() {
            return tokens.len();
        }
        self.maker.tell(Step::Check(tokens.to_vec()));
        match self.hear(self.patience.next()) {
            Ok(Said::Checked(admitted)) => admitted,
            _ => tokens.len(),
        }
    }

    fn has_mask_soon(&mut self) -> bool {
        if self.mask.is_none()
            && let Ok(Said::Mask(mask)) = self.maker.hear(SOON)
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

    /// Takes the chosen token, and begins the next mask.
    ///
    /// # Errors
    /// `Restriction`, if the token was forbidden, or if the mask after it is not known in time.
    pub(super) fn take(&mut self, token: u32) -> Result<GrammarState> {
        // Needed even if nobody asked for the mask.
        self.mask()?;
        self.mask = None;
        self.forced.clear();
        self.maker.tell(Step::Take(token, self.ahead));
        match self.hear(self.patience.next())? {
            Said::Taken(taken) => {
                let Taken { state, forced } = taken.map_err(|error| stuck(&error))?;
                self.forced = forced;
                Ok(state)
            }
            Said::Mask(_) | Said::Checked(_) => Err(out_of_turn()),
        }
    }

    /// Takes back the latest token, and begins the mask before it again.
    ///
    /// # Errors
    /// `Restriction`, if the mask after the token is not known in time; if there is nothing to take back, the next
    /// [`mask`](Self::mask) reports it.
    pub(super) fn undo(&mut self) -> Result<()> {
        self.mask()?;
        self.mask = None;
        self.forced.clear();
        self.maker.tell(Step::Undo);
        Ok(())
    }

    fn hear(&mut self, wait: Duration) -> Result<Said> {
        let begin = Instant::now();
        let said = self.maker.hear(wait);
        self.patience.waited(begin.elapsed());
        said.map_err(|silence| {
            self.maker.cancel();
            let message = match silence {
                Silence::Late => {
                    "it takes too long to find out which tokens may come next; use a simpler form"
                        .to_owned()
                }
                Silence::Gone => "the library stopped at this form".to_owned(),
                Silence::Ended { why } => format!("{why}; use a simpler form"),
            };
            TextError::Restriction { message }
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
        self.maker.cancel();
    }
}

impl Patience {
    /// Returns the maximum wait for the next message.
    fn next(self) -> Duration {
        WAIT_MAX.min(self.left)
    }

    /// Counts the time of a wait before a token.
    fn waited(&mut self, time: Duration) {
        self.left = (self.left.saturating_sub(time) + WAIT_PER_STEP).min(PATIENCE_MAX);
    }
}

fn out_of_turn() -> TextError {
    TextError::Restriction {
        message: "masks came out of turn; this is a bug".to_owned(),
    }
}

/// The longest time for which a batch waits for one answer's mask, or for a token to be taken. Chosen: the library's
/// limits end a step after some 50 ms of computing, but on a busy machine its thread waits for a core too, which is no
/// fault of the form's.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The longest wait for the first mask, which delays no other request. Chosen.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(2);

/// The maximum of all waits of an answer together, beyond the time that each step may take. Chosen.
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// The longest time for which a draft waits for a mask; without the mask it is not checked. Chosen: the cost of a
/// further row for a small model.
const SOON: Duration = Duration::from_micros(300);

/// The wait of each step that does not count; a token has two steps. Chosen.
const WAIT_PER_STEP: Duration = Duration::from_millis(1);

/// Stack for the compiler, which recurses along references. It is reserved, and committed only as it is used.
pub(super) const STACK_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use llguidance::CancellationHandle;

    use super::*;
    use crate::Special;

    /// Masks from a thread that is silent until the test speaks for it.
    fn silent() -> (Masks, Sender<Said>, Receiver<Step>) {
        let (steps, told) = channel();
        let (saying, said) = channel();
        let masks = Masks {
            maker: Maker::Thread {
                steps,
                said,
                cancellation: CancellationHandle::default(),
            },
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
        let Maker::Thread { cancellation, .. } = &masks.maker else {
            panic!("it was made with a thread")
        };
        assert!(cancellation.is_cancelled());
        drop(saying);
        assert!(masks.mask().unwrap_err().to_string().contains("stopped"));
    }

    #[test]
    fn a_token_that_is_not_taken_in_time_is_an_error() {
        let (mut masks, saying, told) = silent();
        let mask = TokenMask::new(vec![0], 8).unwrap();
        saying.send(Said::Mask(Ok(mask))).unwrap();
        let error = masks.take(3).unwrap_err().to_string();
        assert!(error.contains("takes too long"), "{error}");
        assert_eq!(told.recv(), Ok(Step::Take(3, Ahead::Ignore)));
    }

    /// The next mask begins unasked, while the model computes.
    #[test]
    fn the_next_mask_begins_with_its_token() {
        let grammars = super::super::tests::grammars();
        let mut grammar = grammars.regex("[a-c]+").unwrap();
        let allowed = grammar.masks.mask().unwrap().iter().next().unwrap();
        assert_eq!(grammar.masks.take(allowed), Ok(GrammarState::Open));
        let said = grammar.masks.maker.hear(Duration::from_secs(60));
        assert!(matches!(said, Ok(Said::Mask(Ok(_)))));
    }

    /// Tokens, even the last one, may be taken back any number of times.
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
                assert_eq!(*grammar.masks.mask().unwrap(), mask);
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

    /// The masks are the same as those without looking ahead.
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
            // Drafts are not checked before the mask has arrived.
            masks.mask().unwrap();
            masks.admitted(draft)
        };
        let right = tokens("bc or more");
        assert_eq!(admitted(&right), right.len());
        let wrong = [&right[..2], &tokens("!!!")].concat();
        assert_eq!(admitted(&wrong), 2);
        assert_eq!(admitted(&[u32::MAX]), 0);
        assert_eq!(admitted(&[]), 0);
        // The tokens were checked, not taken.
        assert_eq!(masks.take(right[0]), Ok(GrammarState::Open));
    }

    /// Dropping an answer leaves no thread behind.
    #[test]
    fn the_thread_ends_with_its_answer() {
        let (steps, told) = channel();
        let (saying, said) = channel::<Said>();
        let grammars = super::super::tests::grammars();
        let parser = grammars
            .factory
            .create_parser(TopLevelGrammar::from_regex("a+"));
        let matcher = Matcher::new(parser).into_cancellable();
        let mut channels = Channels {
            steps: told,
            saying,
        };
        let thread = std::thread::spawn(move || say(matcher, None, &mut channels));
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
