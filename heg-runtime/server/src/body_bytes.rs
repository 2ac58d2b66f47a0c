//! The buffer of a body.
//!
//! A large body has a memory mapping of its own, which goes back to the system at once. The allocator would keep freed
//! memory: after a few large bodies, as much as all of them took.

use std::io;
use std::ops::Deref;

use memmap2::MmapMut;

use super::platform::advise_small_pages;

/// A buffer that grows up to a size known from the start.
#[derive(Debug)]
pub(super) struct BodyBytes {
    bytes_max: usize,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Heap(Vec<u8>),
    Mapped { pages: MmapMut, filled: usize },
}

impl BodyBytes {
    /// Creates an empty buffer for at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            kept: Kept::Heap(Vec::new()),
        }
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// There is no memory, or there are too many bytes.
    pub(super) fn push(&mut self, data: &[u8]) -> io::Result<()> {
        if let Kept::Heap(bytes) = &mut self.kept {
            if bytes.len() + data.len() <= HEAP_BYTES_MAX {
                bytes.extend_from_slice(data);
                return Ok(());
            }
            let mut pages = MmapMut::map_anon(self.bytes_max.max(1))?;
            // With huge pages, a body of a few bytes would take a whole one.
            advise_small_pages(&pages);
            let filled = bytes.len();
            put(&mut pages, 0, bytes)?;
            self.kept = Kept::Mapped { pages, filled };
        }
        if let Kept::Mapped { pages, filled } = &mut self.kept {
            put(pages, *filled, data)?;
            *filled += data.len();
        }
        Ok(())
    }
}

fn put(pages: &mut [u8], at: usize, data: &[u8]) -> io::Result<()> {
    let place = pages.get_mut(at..at + data.len());
    place
        .ok_or(io::ErrorKind::FileTooLarge)?
        .copy_from_slice(data);
    Ok(())
}

impl Deref for BodyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.kept {
            Kept::Heap(bytes) => bytes,
            Kept::Mapped { pages, filled } => pages.get(..*filled).unwrap_or_default(),
        }
    }
}

/// Size of the largest body that is left to the allocator, in bytes. Chosen: below the size that the allocator maps
/// itself.
const HEAP_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A body's bytes are kept in order, whatever pieces they arrive in.
        #[test]
        fn bytes_are_kept_in_order(pieces in prop::collection::vec(0_usize..40_000, 0..10)) {
            let whole: Vec<u8> = (0..pieces.iter().sum()).map(|at: usize| at as u8).collect();
            let mut bytes = BodyBytes::new(whole.len());
            let mut at = 0;
            for piece in pieces {
                bytes.push(&whole[at..at + piece]).unwrap();
                at += piece;
                prop_assert_eq!(&*bytes, &whole[..at]);
            }
            prop_assert!(whole.len() <= HEAP_BYTES_MAX || bytes.push(b"x").is_err());
        }
    }
}
