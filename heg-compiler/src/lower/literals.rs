//! The pool of small constants (axes, shapes, factors) that all IRs of a bundle share.

use std::collections::BTreeMap;

/// Bytes of the pool, each distinct constant once, in order of first use.
#[derive(Debug, Default)]
pub(crate) struct Literals {
    bytes: Vec<u8>,
    placed: BTreeMap<Vec<u8>, usize>,
}

impl Literals {
    /// Offset of `bytes` in the pool, added if necessary; a multiple of 8, which suits every element type.
    pub(crate) fn place(&mut self, bytes: &[u8]) -> usize {
        if let Some(offset) = self.placed.get(bytes) {
            return *offset;
        }
        let offset = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(offset, 0);
        self.bytes.extend_from_slice(bytes);
        self.placed.insert(bytes.to_vec(), offset);
        offset
    }

    /// Bytes of the pool so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The whole pool.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
