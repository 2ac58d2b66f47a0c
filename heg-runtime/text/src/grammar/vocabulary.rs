//! The vocabulary as a trie of bytes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use anyhow::ensure;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use super::super::tokenizer::Form;
use super::super::{Result, Tokenizer};
use super::unusable;

/// Builds the trie of `tokenizer`'s tokens. Special tokens have no bytes, but can be named in grammars.
///
/// The environment does not encode text: forms restrict the text of an answer, never its tokenization, which is better
/// left to the model.
pub(super) fn environment(tokenizer: &Tokenizer, eos_ids: &[u32]) -> Result<TokEnv> {
    let made = catch_unwind(AssertUnwindSafe(|| {
        ensure!(
            tokenizer.form() != Form::Other,
            "expected byte-level BPE or SentencePiece with byte fallback"
        );
        let count = u32::try_from(tokenizer.token_count())?;
        let tokens: Vec<Vec<u8>> = (0..count).map(|token| bytes(tokenizer, token)).collect();
        let known: Vec<u32> = eos_ids.iter().copied().filter(|&id| id < count).collect();
        let trie = TokTrie::from(&TokRxInfo::new(count, INVALID_TOKEN), &tokens);
        Ok(match known.is_empty() {
            true => trie,
            false => trie.with_eos_tokens(&known),
        })
    }));
    let trie = made.map_err(|error| unusable("vocabulary", &error))?;
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

fn bytes(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    if tokenizer.is_special(token) {
        bytes.push(TokTrie::SPECIAL_TOKEN_MARKER);
        bytes.extend(tokenizer.token_text(token).unwrap_or_default().bytes());
    } else {
        tokenizer.push_inner_bytes(token, &mut bytes);
    }
    bytes
}
