//! Pages that belong to nobody: those of baked states, which come with a bundle and are for everyone who has it.
//!
//! They have the form of kept pages, with three differences: a page's name is its place in the bundle, links between
//! heads are hashes without a key, and the seal is zeros, since the bundle says the hash of each page.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::error::Miss;
use crate::page::{HEAD_BYTES, HeldTokens, PAGE_TOKENS, PageError, PageHead, StateModel};
use crate::secret::OwnerTag;

/// The tag of pages that belong to nobody. No owner of a folder has it, but by a chance of 2^-256.
const NOBODY: OwnerTag = OwnerTag([0; 32]);

/// In place of a seal.
const NO_SEAL: [u8; 32] = [0; 32];

/// Returns the heads of the pages of a prompt that belong to nobody. The last page may hold fewer tokens than the others.
pub fn public_heads(model: &StateModel, tokens: &[u32]) -> Vec<PageHead> {
    let mut before = [0; 32];
    let pages = tokens.chunks(PAGE_TOKENS).filter_map(HeldTokens::new);
    let heads = (0..).zip(pages).map(|(index, tokens)| {
        let head = PageHead {
            model: *model,
            owner: NOBODY,
            before,
            index,
            tokens,
        };
        before = blake3::derive_key("heg baked state 1: link", &head.identity());
        head
    });
    heads.collect()
}

/// Returns a page that belongs to nobody, as it stands in a bundle.
pub fn public_page(head: &PageHead, payload: &[u8]) -> Vec<u8> {
    let mut page = head.to_bytes(&NO_SEAL);
    page.extend_from_slice(payload);
    page
}

/// Returns the content of a page whose bytes are those that the bundle names, if its head is, byte for byte, the one that
/// was asked for.
///
/// # Errors
///
/// [`Miss::Damaged`], [`Miss::Other`].
pub fn public_payload<'b>(head: &PageHead, bytes: &'b [u8]) -> Result<&'b [u8], Miss> {
    let index = head.index;
    let damaged = |source| Miss::Damaged { index, source };
    let (found, seal) = PageHead::parse(bytes).map_err(damaged)?;
    if found != *head || seal != NO_SEAL {
        return Err(Miss::Other { index });
    }
    let payload = bytes.get(HEAD_BYTES..).unwrap_or_default();
    let (found, expected) = (payload.len() as u64, head.payload_bytes());
    match found == expected {
        true => Ok(payload),
        false => Err(damaged(PageError::Payload { found, expected })),
    }
}

/// Reads the page of a number, into memory that it may use.
type ReadPage<'a> = dyn Fn(usize, &mut Vec<u8>) -> Result<(), Miss> + Sync + 'a;

/// Reads `count` pages on several threads: `read` gets the number of each, and memory of its thread to read into.
///
/// # Errors
///
/// The first [`Miss`]; some pages may have been read.
pub fn read_pages(count: usize, read: &ReadPage<'_>) -> Result<(), Miss> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        let mut memory = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            if let Err(miss) = read(at, &mut memory) {
                next.store(count, Ordering::Relaxed);
                *failed
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(miss);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 1..threads.min(count).min(THREADS_MAX) {
            scope.spawn(work);
        }
        work();
    });
    let failed = failed.into_inner();
    match failed.unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(miss) => Err(miss),
        None => Ok(()),
    }
}

/// Most threads that read pages. Chosen: hashing on four keeps up with an SSD.
const THREADS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(payload_bytes: usize) -> StateModel {
        StateModel {
            bundle: [1; 32],
            form: [2; 32],
            payload_bytes: payload_bytes as u64,
        }
    }

    proptest! {
        #[test]
        fn pages_come_back_behind_their_own_beginning_only(
            tokens in prop::collection::vec(any::<u32>(), 0..300),
            byte: u8, token_bytes in 1_usize..4,
            changed in any::<prop::sample::Index>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let model = model(PAGE_TOKENS * token_bytes);
            let heads = public_heads(&model, &tokens);
            prop_assert_eq!(heads.len(), tokens.len().div_ceil(PAGE_TOKENS));
            let Some(last) = heads.last() else { return Ok(()) };
            let held = tokens.len() - (heads.len() - 1) * PAGE_TOKENS;
            prop_assert_eq!(last.tokens(), &tokens[tokens.len() - held..]);
            let payload = vec![byte; held * token_bytes];
            let page = public_page(last, &payload);
            prop_assert_eq!(public_payload(last, &page).unwrap(), &payload[..]);
            // Any other beginning has another head, and so has another model.
            let mut other = tokens.clone();
            other[changed.index(tokens.len())] ^= 1;
            let others = public_heads(&model, &other);
            prop_assert!(public_payload(&others[heads.len() - 1], &page).is_err());
            // What is in the head is all compared.
            let mut spoilt = page.clone();
            spoilt[flip.index(HEAD_BYTES)] ^= 1;
            prop_assert!(public_payload(last, &spoilt).is_err());
            prop_assert!(public_payload(last, &page[..flip.index(page.len())]).is_err());
        }
    }

    #[test]
    fn the_first_miss_ends_a_read() {
        let seen = AtomicUsize::new(0);
        let read = |at: usize, _: &mut Vec<u8>| {
            seen.fetch_add(1, Ordering::Relaxed);
            match at {
                3.. => Err(Miss::Gone { index: at as u64 }),
                _ => Ok(()),
            }
        };
        assert!(read_pages(3, &read).is_ok());
        assert!(matches!(
            read_pages(1000, &read),
            Err(Miss::Gone { index: 3..7 })
        ));
        assert!(seen.into_inner() < 20);
    }
}
