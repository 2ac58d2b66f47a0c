//! Steps and masks as bytes, for a grammar that runs in another process.
//!
//! A message is a byte for its kind, and little-endian numbers; a list has no length of its own, since the frame around
//! it ends it. The bytes come from a process that may be compromised; reading any bytes is safe.

use std::time::Duration;

use super::super::GrammarState;
use super::thread::{Ahead, Said, Step, Taken, TokenMask};
use anyhow::anyhow;

/// A connection to the other side of a grammar, message by message.
pub trait FrameLink: Send {
    /// Sends a message.
    ///
    /// # Errors
    /// `Gone`.
    fn send(&mut self, message: &[u8]) -> Result<(), Silence>;

    /// Waits for a message; without a limit if no time is given.
    ///
    /// # Errors
    /// `Late`, `Gone` or `Ended`.
    fn receive(&mut self, wait: Option<Duration>) -> Result<Vec<u8>, Silence>;
}

/// The reasons for receiving nothing from the other side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// The other side has sent nothing in the given time.
    #[error("no message came in time")]
    Late,
    /// The other side is gone.
    #[error("the other side is gone")]
    Gone,
    /// The system killed the other side.
    #[error("{why}")]
    Ended {
        /// The limit that was reached.
        why: &'static str,
    },
}

impl Step {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Take(token, ahead) => {
                let kind = match ahead {
                    Ahead::Look => TAKE_AND_LOOK,
                    Ahead::Ignore => TAKE,
                };
                message(kind, [*token])
            }
            Self::Undo => vec![UNDO],
            Self::Check(tokens) => message(CHECK, tokens.iter().copied()),
        }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let numbers = numbers(rest)?;
        match (kind, numbers.as_slice()) {
            (TAKE, [token]) => Some(Self::Take(*token, Ahead::Ignore)),
            (TAKE_AND_LOOK, [token]) => Some(Self::Take(*token, Ahead::Look)),
            (UNDO, []) => Some(Self::Undo),
            (CHECK, _) => Some(Self::Check(numbers)),
            _ => None,
        }
    }
}

impl Said {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Mask(Ok(mask)) => {
                let size = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                let words = mask.words().iter().copied();
                message(MASK, std::iter::once(size).chain(words))
            }
            Self::Taken(Ok(Taken { state, forced })) => {
                let kind = match state {
                    GrammarState::Open => OPEN,
                    GrammarState::Complete => COMPLETE,
                };
                message(kind, forced.iter().copied())
            }
            Self::Checked(admitted) => {
                message(CHECKED, [u32::try_from(*admitted).unwrap_or(u32::MAX)])
            }
            Self::Mask(Err(error)) => failure(NO_MASK, error),
            Self::Taken(Err(error)) => failure(NOT_TAKEN, error),
        }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let said = |text: &[u8]| anyhow!("{}", String::from_utf8_lossy(text));
        Some(match kind {
            NO_MASK => Self::Mask(Err(said(rest))),
            NOT_TAKEN => Self::Taken(Err(said(rest))),
            MASK => Self::Mask(Ok(mask(&numbers(rest)?)?)),
            OPEN => Self::Taken(Ok(Taken {
                state: GrammarState::Open,
                forced: numbers(rest)?,
            })),
            COMPLETE => Self::Taken(Ok(Taken {
                state: GrammarState::Complete,
                forced: numbers(rest)?,
            })),
            CHECKED => match numbers(rest)?.as_slice() {
                [admitted] => Self::Checked(*admitted as usize),
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Reads a mask from its size and its words.
fn mask(numbers: &[u32]) -> Option<TokenMask> {
    let (&size, words) = numbers.split_first()?;
    TokenMask::new(words.to_vec(), size as usize)
}

fn message(kind: u8, numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut bytes = vec![kind];
    for number in numbers {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn numbers(bytes: &[u8]) -> Option<Vec<u32>> {
    let (numbers, rest) = bytes.as_chunks();
    rest.is_empty().then(|| {
        numbers
            .iter()
            .map(|bytes| u32::from_le_bytes(*bytes))
            .collect()
    })
}

/// Writes an error, cut to the length that its reader shows.
fn failure(kind: u8, error: &anyhow::Error) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(super::message(error).bytes());
    bytes
}

const TAKE: u8 = 1;
const TAKE_AND_LOOK: u8 = 2;
const UNDO: u8 = 3;
const CHECK: u8 = 4;
const MASK: u8 = 5;
const NO_MASK: u8 = 6;
const OPEN: u8 = 7;
const COMPLETE: u8 = 8;
const NOT_TAKEN: u8 = 9;
const CHECKED: u8 = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_arrive_as_they_were_sent(tokens in proptest::collection::vec(any::<u32>(), 0..40), size in 0_usize..300) {
            let steps = [Step::Undo, Step::Take(7, Ahead::Look), Step::Take(u32::MAX, Ahead::Ignore), Step::Check(tokens.clone())];
            for step in steps {
                prop_assert_eq!(Step::from_bytes(&step.to_bytes()), Some(step));
            }
            let words = tokens.iter().copied().chain(std::iter::repeat(0));
            let mask = TokenMask::new(words.take(size.div_ceil(32)).collect(), size).unwrap();
            let arrived = Said::from_bytes(&Said::Mask(Ok(mask.clone())).to_bytes());
            let Some(Said::Mask(Ok(arrived))) = arrived else { panic!("no mask") };
            prop_assert_eq!(arrived, mask);
            let taken = Said::Taken(Ok(Taken { state: GrammarState::Complete, forced: tokens.clone() }));
            let Some(Said::Taken(Ok(arrived))) = Said::from_bytes(&taken.to_bytes()) else { panic!("not taken") };
            prop_assert_eq!((arrived.state, arrived.forced), (GrammarState::Complete, tokens));
        }

        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Step::from_bytes(&bytes);
            if let Some(Said::Mask(Ok(mask))) = Said::from_bytes(&bytes) {
                prop_assert!(mask.len() <= 8 * bytes.len());
            }
        }
    }

    #[test]
    fn errors_keep_their_words() {
        let failed = Said::Mask(Err(anyhow!("too complex\n<state>\nsecret")));
        let Some(Said::Mask(Err(error))) = Said::from_bytes(&failed.to_bytes()) else {
            panic!("no error")
        };
        assert_eq!(error.to_string(), "too complex");
    }
}
