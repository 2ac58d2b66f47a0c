//! A page: the head that says what it holds, and its form in a file.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `HEGKVPGE` |
//! | 4, 4 | revision of the form, tokens that it holds |
//! | 8 | number of the page in its prompt, from 0 |
//! | 8 | bytes of the payload of a whole page |
//! | 32, 32 | bundle, form of arithmetic |
//! | 32, 32 | owner, hash of the head of the page before; zero for the first |
//! | 4 · 64 | tokens; zeros behind the last one |
//! | 32 | seal: keyed hash of all bytes before it and of the payload |
//! | up to 4 096 | zeros |
//! | | payload: for each layer the rows of keys, then those of values |
//!
//! Numbers are little-endian. All pages of a prompt are whole but for its last one, which may hold fewer tokens.

use crate::secret::{OwnerTag, hex};

/// Tokens of a page. Chosen: a system prompt of a few hundred tokens is kept but for its last part, and a page of a
/// model of a billion parameters takes 2 MiB, which a disk writes about as fast as more at once.
pub const PAGE_TOKENS: usize = 64;

/// Bytes of a head in a file, so that the payload begins at a page of memory.
pub const HEAD_BYTES: usize = 4096;

/// The model that computed the content of pages. Pages of different models are never used for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateModel {
    /// Hash of the bundle's manifest.
    pub bundle: [u8; 32],
    /// Hash of everything else that decides the bits: program, arithmetic, shape of rows.
    pub form: [u8; 32],
    /// Bytes of the keys and values of a page's tokens.
    pub payload_bytes: u64,
}

/// All that a page says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHead {
    /// The model that computed it.
    pub model: StateModel,
    /// The owner of the prompt.
    pub owner: OwnerTag,
    /// Hash of the head of the page before it; zero for the first.
    pub(crate) before: [u8; 32],
    /// Number of the page in its prompt, from 0.
    pub index: u64,
    pub(crate) tokens: HeldTokens,
}

/// The tokens of a page, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldTokens {
    count: u32,
    /// Zeros behind the first `count`.
    all: [u32; PAGE_TOKENS],
}

/// Why bytes are not the head of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Fewer bytes than a head has.
    #[error("it has {found} bytes, expected at least {HEAD_BYTES}")]
    Short {
        /// Their number.
        found: usize,
    },
    /// Another kind of file.
    #[error("it does not begin as a page of KV does")]
    Magic,
    /// A form of another version of HEG.
    #[error("its form has revision {found}, expected {REVISION}")]
    Revision {
        /// The revision.
        found: u32,
    },
    /// A page without tokens, or with too many.
    #[error("it has {found} tokens, expected 1 to {PAGE_TOKENS}")]
    Tokens {
        /// The number.
        found: u32,
    },
    /// Tokens behind the last one that are not zero.
    #[error("tokens behind its last one are not zero")]
    Behind,
    /// Bytes between head and payload that are not zero.
    #[error("bytes behind its head are not zero")]
    Padding,
    /// A payload of another length than the head says.
    #[error("its payload has {found} bytes, expected {expected}")]
    Payload {
        /// The length of the payload.
        found: u64,
        /// The length in its head.
        expected: u64,
    },
}

impl PageHead {
    /// Reads the head of a page, and its seal.
    ///
    /// # Errors
    ///
    /// [`PageError`]; no byte behind the first [`HEAD_BYTES`] is read.
    pub fn parse(bytes: &[u8]) -> Result<(Self, [u8; 32]), PageError> {
        let found = bytes.len();
        let head = bytes.get(..HEAD_BYTES).ok_or(PageError::Short { found })?;
        let mut rest = Fields(head);
        if rest.take::<8>() != MAGIC {
            return Err(PageError::Magic);
        }
        let (revision, tokens) = (rest.u32(), rest.u32());
        if revision != REVISION {
            return Err(PageError::Revision { found: revision });
        }
        if !(1..=PAGE_TOKENS as u32).contains(&tokens) {
            return Err(PageError::Tokens { found: tokens });
        }
        let (index, payload_bytes) = (rest.u64(), rest.u64());
        let (bundle, form) = (rest.take(), rest.take());
        let (owner, before) = (OwnerTag(rest.take()), rest.take());
        let tokens = HeldTokens {
            count: tokens,
            all: std::array::from_fn(|_| rest.u32()),
        };
        if tokens.behind().iter().any(|token| *token != 0) {
            return Err(PageError::Behind);
        }
        let seal = rest.take();
        if rest.0.iter().any(|byte| *byte != 0) {
            return Err(PageError::Padding);
        }
        let model = StateModel {
            bundle,
            form,
            payload_bytes,
        };
        let head = Self {
            model,
            owner,
            before,
            index,
            tokens,
        };
        Ok((head, seal))
    }

    /// The tokens whose keys and values it holds.
    pub fn tokens(&self) -> &[u32] {
        self.tokens.held()
    }

    /// Bytes of the keys and values of its tokens.
    pub fn payload_bytes(&self) -> u64 {
        let whole = self.model.payload_bytes;
        match u64::from(self.tokens.count) {
            count if count < PAGE_TOKENS as u64 => whole / PAGE_TOKENS as u64 * count,
            _ => whole,
        }
    }

    /// The digits of the hash of the page before it.
    pub(crate) fn before_link(&self) -> String {
        hex(&self.before)
    }

    /// The bytes that distinguish it: all of the head but seal and zeros.
    pub(crate) fn identity(&self) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        let numbers = [
            &MAGIC[..],
            &REVISION.to_le_bytes(),
            &self.tokens.count.to_le_bytes(),
            &self.index.to_le_bytes(),
            &self.model.payload_bytes.to_le_bytes(),
            &self.model.bundle,
            &self.model.form,
            &self.owner.0,
            &self.before,
        ];
        let tokens = self.tokens.all.iter().flat_map(|token| token.to_le_bytes());
        let fields = numbers.into_iter().flatten().copied().chain(tokens);
        bytes
            .iter_mut()
            .zip(fields)
            .for_each(|(to, from)| *to = from);
        bytes
    }

    /// Returns the head as it stands in a file, with its seal.
    pub fn to_bytes(&self, seal: &[u8; 32]) -> Vec<u8> {
        let mut bytes = self.identity().to_vec();
        bytes.extend_from_slice(seal);
        bytes.resize(HEAD_BYTES, 0);
        bytes
    }
}

impl HeldTokens {
    /// Those of `tokens` that a page has room for; `None` if there are none.
    pub(crate) fn new(tokens: &[u32]) -> Option<Self> {
        let count = tokens.len().min(PAGE_TOKENS);
        let at = |index: usize| tokens.get(index).copied().unwrap_or(0);
        (count > 0).then(|| Self {
            count: count as u32,
            all: std::array::from_fn(at),
        })
    }

    fn held(&self) -> &[u32] {
        self.all.get(..self.count as usize).unwrap_or(&self.all)
    }

    fn behind(&self) -> &[u32] {
        self.all.get(self.count as usize..).unwrap_or_default()
    }
}

/// The rest of a head that is being read; it is long enough for all fields.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        if let Some((first, rest)) = self.0.split_at_checked(N) {
            field.copy_from_slice(first);
            self.0 = rest;
        }
        field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

const MAGIC: [u8; 8] = *b"HEGKVPGE";

/// Revision of the form of pages. Pages of another revision are misses, and go in time.
const REVISION: u32 = 1;

/// Bytes of magic, four numbers, four hashes and the tokens.
const IDENTITY_BYTES: usize = 8 + 4 + 4 + 8 + 8 + 4 * 32 + 4 * PAGE_TOKENS;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head() -> PageHead {
        head_of(PAGE_TOKENS)
    }

    fn head_of(count: usize) -> PageHead {
        let tokens: Vec<u32> = (0..count).map(|at| at as u32 * 7).collect();
        PageHead {
            model: StateModel {
                bundle: [1; 32],
                form: [2; 32],
                payload_bytes: 6400,
            },
            owner: OwnerTag([4; 32]),
            before: [5; 32],
            index: 6,
            tokens: HeldTokens::new(&tokens).unwrap(),
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        for (count, payload_bytes) in [(PAGE_TOKENS, 6400), (63, 6300), (1, 100)] {
            let head = head_of(count);
            let bytes = head.to_bytes(&[8; 32]);
            assert_eq!(bytes.len(), HEAD_BYTES);
            assert_eq!(PageHead::parse(&bytes), Ok((head, [8; 32])));
            assert_eq!(
                (head.tokens().len(), head.payload_bytes()),
                (count, payload_bytes)
            );
        }
    }

    #[test]
    fn what_is_no_page_is_refused_with_its_reason() {
        let good = head().to_bytes(&[8; 32]);
        let changed = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            PageHead::parse(&bytes)
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        let said = |text: &str| Err(text.to_owned());
        assert_eq!(changed(0), said("it does not begin as a page of KV does"));
        assert_eq!(changed(8), said("its form has revision 0, expected 1"));
        assert_eq!(changed(12), said("it has 65 tokens, expected 1 to 64"));
        // The number of tokens is 63 or none, and the last one is behind them.
        let count = |count: u8| {
            let mut bytes = good.clone();
            bytes[12] = count;
            PageHead::parse(&bytes)
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        assert_eq!(count(0), said("it has 0 tokens, expected 1 to 64"));
        assert_eq!(count(63), said("tokens behind its last one are not zero"));
        assert_eq!(changed(4095), said("bytes behind its head are not zero"));
        let short = PageHead::parse(&good[..4095]).unwrap_err();
        assert_eq!(
            short.to_string(),
            "it has 4095 bytes, expected at least 4096"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_written_again_as_they_were(
            at in 0..HEAD_BYTES, byte: u8, cut in 0..=HEAD_BYTES, count in 1..=PAGE_TOKENS,
        ) {
            let mut bytes = head_of(count).to_bytes(&[8; 32]);
            bytes[at] = byte;
            bytes.truncate(cut);
            if let Ok((head, seal)) = PageHead::parse(&bytes) {
                prop_assert_eq!(head.to_bytes(&seal), bytes);
            }
        }
    }
}
