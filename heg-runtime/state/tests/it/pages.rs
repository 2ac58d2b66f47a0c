//! The content of pages in tests: any difference in model or tokens makes another.

use std::time::Duration;

use heg_state::{
    KeepEnd, Keeping, Miss, PAGE_TOKENS, StateError, StateFolder, StateModel, StateOwner,
};

pub(crate) const PAYLOAD_BYTES: usize = 160;

pub(crate) fn model(number: u8) -> StateModel {
    StateModel {
        bundle: [number; 32],
        form: [number / 2; 32],
        payload_bytes: PAYLOAD_BYTES as u64,
    }
}

/// A model's rows for the page with this number: they depend on all tokens up to its end.
pub(crate) fn content(model: &StateModel, tokens: &[u32], page: usize) -> Vec<u8> {
    let mut seed = model.bundle.to_vec();
    let leading = &tokens[..(page + 1) * PAGE_TOKENS];
    seed.extend(leading.iter().flat_map(|token| token.to_le_bytes()));
    let (a, b) = seed.iter().fold((7u64, 11u64), |(a, b), byte| {
        let a = (a ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        (a, b.rotate_left(5) ^ a)
    });
    let word = |at: u64| a.wrapping_mul(2 * at + 1) ^ b.rotate_left(at as u32 % 64);
    let words = (0..PAYLOAD_BYTES as u64 / 8).flat_map(|at| word(at).to_le_bytes());
    words.collect()
}

pub(crate) fn keep(
    folder: &StateFolder,
    model: &StateModel,
    owner: StateOwner,
    tokens: &[u32],
) -> Result<KeepEnd, StateError> {
    keep_older(folder, model, owner, tokens, Duration::ZERO)
}

/// Keeps pages that count as older by `age`.
pub(crate) fn keep_older(
    folder: &StateFolder,
    model: &StateModel,
    owner: StateOwner,
    tokens: &[u32],
    age: Duration,
) -> Result<KeepEnd, StateError> {
    let what = Keeping {
        model,
        owner,
        tokens,
        age,
    };
    folder.keep(what, |page, into| {
        into.copy_from_slice(&content(model, tokens, page));
        true
    })
}

/// Reads the longest kept prefix, checks all that it gives, and returns its tokens; a miss gives none.
pub(crate) fn recall(
    folder: &StateFolder,
    model: &StateModel,
    owner: StateOwner,
    tokens: &[u32],
) -> Result<usize, Miss> {
    let (prefix, miss) = folder.find(model, owner, tokens);
    if prefix.tokens() == 0 {
        return miss.map_or(Ok(0), Err);
    }
    folder.read(&prefix, prefix.tokens(), &|page, payload: &[u8]| {
        assert_eq!(
            payload,
            content(model, tokens, page),
            "page {page} is another"
        );
        true
    })?;
    folder.touch(&prefix);
    Ok(prefix.tokens())
}
