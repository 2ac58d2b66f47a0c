//! The beginning of a prompt that need not be computed: the longest of those that are kept or baked.

use super::baked::BakedRows;
use super::kept::KeptRows;
use crate::error::EngineError;
use heg_exec::mem::KvCache;

/// The beginning of a prompt whose keys and values are elsewhere, or that there is none. It was looked for on the
/// caller's thread.
#[derive(Clone, Default)]
pub struct KeptPrompt(pub(super) Option<PrefixRows>);

/// The rows of a prompt's beginning, to be read into a cache.
#[derive(Clone)]
pub(super) enum PrefixRows {
    /// In a folder, for the prompt's owner.
    Kept(KeptRows),
    /// In the bundle, for everyone.
    Baked(BakedRows),
}

impl PrefixRows {
    /// Returns the longer one; of equal ones that of the bundle, which need not be hashed again.
    pub(super) fn longest(kept: Option<KeptRows>, baked: Option<BakedRows>) -> Option<Self> {
        match (kept, baked) {
            (Some(kept), Some(baked)) if kept.tokens() > baked.tokens() => Some(Self::Kept(kept)),
            (_, Some(baked)) => Some(Self::Baked(baked)),
            (kept, None) => kept.map(Self::Kept),
        }
    }

    /// Number of rows.
    pub(super) fn tokens(&self) -> usize {
        match self {
            Self::Kept(rows) => rows.tokens(),
            Self::Baked(rows) => rows.tokens(),
        }
    }

    /// Reads the first `tokens` rows into a cache.
    ///
    /// # Errors
    ///
    /// [`EngineError::KeptState`] if one of the pages is gone or damaged; some rows may have been written.
    pub(super) fn read(&self, room: &KvCache, tokens: usize) -> Result<(), EngineError> {
        match self {
            Self::Kept(rows) => rows.read(room, tokens),
            Self::Baked(rows) => rows.read(room, tokens),
        }
    }
}
