//! The special tokens: begin, end, padding, and all that end an answer.

use std::collections::BTreeMap;

use super::mistake::VocabularyMistake;
use super::vocabulary::{CheckedTokens, TokenKind};

/// Checked ids.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    /// transformers' name of each role, and its id.
    roles: Vec<(&'static str, u32)>,
    /// Ids that end an answer, the end of a text first.
    pub(super) ends: Vec<u32>,
}

impl SpecialTokens {
    pub(super) fn of(tokens: &CheckedTokens<'_>) -> Result<Self, VocabularyMistake> {
        let ids = tokens.source.ids;
        let is_sentence_piece = tokens.source.model == "llama";
        let mut roles = Vec::new();
        for (role, key, given, usual) in [
            (BOS, BOS_ID, ids.bos, Some((1, TokenKind::Control))),
            (EOS, EOS_ID, ids.eos, Some((2, TokenKind::Control))),
            (UNK, UNK_ID, ids.unk, Some((0, TokenKind::Unknown))),
            ("sep_token", SEP_ID, ids.sep, None),
            ("pad_token", PAD_ID, ids.pad, None),
            ("mask_token", MASK_ID, ids.mask, None),
        ] {
            let usual = usual.filter(|_| is_sentence_piece);
            let usual = usual.filter(|&(id, kind)| tokens.kind(id) == Some(kind));
            let id = checked(tokens, key, given)?.or(usual.map(|(id, _)| id));
            roles.extend(id.map(|id| (role, id)));
        }
        let mut special = Self {
            roles,
            ends: Vec::new(),
        };
        let turn = checked(tokens, EOT_ID, ids.eot)?;
        let message = checked(tokens, EOM_ID, ids.eom)?;
        let said = special.id(EOS).into_iter().chain(turn).chain(message);
        let ids = tokens.texts.iter().zip(&tokens.kinds).zip(0..);
        let named = ids.filter(|((text, kind), _)| ends_by_name(text, **kind));
        for id in said.chain(named.map(|(_, id)| id)) {
            if !special.ends.contains(&id) {
                special.ends.push(id);
            }
        }
        Ok(special)
    }

    /// The id of a role.
    pub(super) fn id(&self, role: &str) -> Option<u32> {
        let mut roles = self.roles.iter();
        roles.find(|(name, _)| *name == role).map(|(_, id)| *id)
    }

    /// Whether a token stands for itself alone: it is recognised in written text and never shown.
    pub(super) fn is_special(&self, id: u32, kind: TokenKind) -> bool {
        matches!(kind, TokenKind::Control | TokenKind::Unknown)
            || self.ends.contains(&id)
            || self.id(BOS) == Some(id)
    }

    /// The roles by transformers' names, with the tokens' texts.
    pub(super) fn texts(&self, tokens: &CheckedTokens<'_>) -> BTreeMap<String, String> {
        let roles = self.roles.iter();
        roles
            .map(|&(role, id)| (role.to_owned(), tokens.text(id).to_owned()))
            .collect()
    }
}

fn checked(
    tokens: &CheckedTokens<'_>,
    key: &'static str,
    given: Option<u64>,
) -> Result<Option<u32>, VocabularyMistake> {
    let Some(found) = given else { return Ok(None) };
    let id = u32::try_from(found).ok();
    match id.filter(|&id| tokens.kind(id).is_some()) {
        Some(id) => Ok(Some(id)),
        None => Err(VocabularyMistake::Id {
            key,
            found,
            tokens: tokens.texts.len(),
        }),
    }
}

/// Whether a token ends an answer by its name: files often list only one of several ends (Gemma's `<end_of_turn>`).
fn ends_by_name(text: &str, kind: TokenKind) -> bool {
    match kind {
        TokenKind::Control => ENDS.contains(&text) || SHORT_ENDS.contains(&text),
        TokenKind::UserDefined => ENDS.contains(&text),
        _ => false,
    }
}

pub(super) const BOS: &str = "bos_token";
pub(super) const EOS: &str = "eos_token";
pub(super) const UNK: &str = "unk_token";
pub(super) const BOS_ID: &str = "tokenizer.ggml.bos_token_id";
pub(super) const EOS_ID: &str = "tokenizer.ggml.eos_token_id";
/// Spelt as in the format.
pub(super) const SEP_ID: &str = "tokenizer.ggml.seperator_token_id";
pub(super) const PAD_ID: &str = "tokenizer.ggml.padding_token_id";
pub(super) const MASK_ID: &str = "tokenizer.ggml.mask_token_id";
pub(super) const EOT_ID: &str = "tokenizer.ggml.eot_token_id";
pub(super) const EOM_ID: &str = "tokenizer.ggml.eom_token_id";
pub(super) const UNK_ID: &str = "tokenizer.ggml.unknown_token_id";

/// Names that mean an end in any vocabulary (those of llama.cpp without the ends of code completion).
const ENDS: [&str; 9] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// Names that may also mean something else: Gemma has `</s>` as a tag of HTML.
const SHORT_ENDS: [&str; 5] = ["</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]"];
