//! SentencePiece's BPE, `llama` in GGUF: scores in place of merges.
//!
//! SentencePiece joins two neighbours whenever they make a piece: the piece with the highest score first, among equal
//! ones the leftmost. `tokenizers` joins pairs of a list, in its order. The list here has one pair for each piece: the
//! last one that SentencePiece joins when the piece is the whole text. No other pair can ever make it: the merges
//! within a stretch of text that ends up as one piece do not depend on the text around it, since each step takes the
//! best pair, and pairs across the stretch's ends were never taken. So both give the same tokens wherever scores
//! differ. (Equal scores of different pieces are put in the order of their ids; files that were converted without
//! `tokenizer.model` have the same score everywhere, and ids in the order of the merges.)

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use serde_json::{Value, json};

use super::mistake::VocabularyMistake;
use super::special::{SpecialTokens, UNK};
use super::tokenizer_json::{Bpe, Steps, TokenizerJson};
use super::vocabulary::{CheckedTokens, SCORES, TokenKind};

/// The tokenizer of a checked vocabulary.
pub(super) fn tokenizer(
    tokens: &CheckedTokens<'_>,
    special: &SpecialTokens,
) -> Result<Vec<u8>, VocabularyMistake> {
    let source = tokens.source;
    if source.remove_extra_whitespaces == Some(true) {
        return Err(VocabularyMistake::ExtraWhitespace);
    }
    let prefix = match source.add_space_prefix {
        Some(false) => SpacePrefix::None,
        None | Some(true) => SpacePrefix::Added,
    };
    let ids = tokens.by_text()?;
    let byte_fallback = (0..=u8::MAX).all(|byte| ids.contains_key(byte_token(byte).as_str()));
    if !byte_fallback && special.id(UNK).is_none() {
        return Err(VocabularyMistake::NoFallback);
    }
    let merges = merges(tokens, &ids)?;
    let mut written = tokens.clone();
    if prefix == SpacePrefix::None {
        written.texts = with_marked_spaces(tokens, &ids);
    }
    let model = Bpe {
        r#type: "BPE",
        dropout: (),
        unk_token: special.id(UNK).map(|id| tokens.text(id)),
        continuing_subword_prefix: (),
        end_of_word_suffix: (),
        fuse_unk: true,
        byte_fallback,
        ignore_merges: false,
        vocab: &written.texts,
        merges,
    };
    let mut added = TokenizerJson::added_tokens(&written, special);
    for token in &mut added {
        token.normalized = prefix == SpacePrefix::None && !token.special;
        token.rstrip = source.architecture == "phi3" && !BARE_OF_PHI.contains(&token.content);
    }
    TokenizerJson::write(tokens, special, steps(prefix), added, model)
}

/// Whether text gets a space in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpacePrefix {
    None,
    Added,
}

fn steps(prefix: SpacePrefix) -> Steps {
    let mark = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let space = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let mut decoders = vec![
        space,
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    let normalizer = match prefix {
        SpacePrefix::None => mark,
        SpacePrefix::Added => {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
            let prepend = json!({"type": "Prepend", "prepend": "▁"});
            json!({"type": "Sequence", "normalizers": [prepend, mark]})
        }
    };
    Steps {
        normalizer,
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        adds_bos: true,
    }
}

/// The texts with `▁` for the spaces of user-defined tokens, as in SentencePiece, which searches for them in text whose
/// spaces are marked already. The converter writes spaces, because llama.cpp searches before it marks.
fn with_marked_spaces<'a>(
    tokens: &CheckedTokens<'a>,
    ids: &HashMap<&str, u32>,
) -> Vec<Cow<'a, str>> {
    let mut made = HashSet::new();
    let texts = tokens.texts.iter().zip(&tokens.kinds);
    let texts = texts.map(|(text, kind)| {
        if *kind != TokenKind::UserDefined || !text.contains(' ') {
            return text.clone();
        }
        let marked = text.replace(' ', "▁");
        match !ids.contains_key(marked.as_str()) && made.insert(marked.clone()) {
            true => Cow::Owned(marked),
            false => text.clone(),
        }
    });
    texts.collect()
}

/// One merge for each piece that can be made, the best first.
fn merges<'a>(
    tokens: &'a CheckedTokens<'_>,
    ids: &HashMap<&'a str, u32>,
) -> Result<Vec<[&'a str; 2]>, VocabularyMistake> {
    let Some(scores) = &tokens.source.scores else {
        return Err(VocabularyMistake::Missing { key: SCORES });
    };
    if let Some((id, score)) = scores
        .iter()
        .enumerate()
        .find(|(_, score)| !score.is_finite())
    {
        let found = score.to_string();
        return Err(VocabularyMistake::Score { id, found });
    }
    let pieces = ids
        .iter()
        .filter(|(_, id)| tokens.kind(**id) == Some(TokenKind::Normal));
    let score = |id: u32| scores.get(id as usize).copied().unwrap_or_default();
    let mut pieces: Vec<(&'a str, u32)> = pieces.map(|(text, id)| (*text, *id)).collect();
    pieces.par_sort_unstable_by(|&(_, a), &(_, b)| {
        let by_score = score(b).partial_cmp(&score(a)).unwrap_or(Ordering::Equal);
        by_score.then(a.cmp(&b))
    });
    let ranks: Ranks<'a> = pieces.iter().map(|(text, _)| *text).zip(0..).collect();
    let last_pairs = pieces
        .par_iter()
        .filter_map(|&(text, id)| last_pair(text, id, &ranks).transpose());
    last_pairs.collect()
}

/// The place of each piece in the order of scores.
type Ranks<'a> = HashMap<&'a str, u32>;

/// The last pair that is joined to make a piece when it is the whole text; `None` if that text becomes something else.
fn last_pair<'a>(
    text: &'a str,
    id: u32,
    ranks: &Ranks<'_>,
) -> Result<Option<[&'a str; 2]>, VocabularyMistake> {
    // Starts of the symbols, and the rank of the piece that each makes with its right neighbour.
    let mut starts: Vec<usize> = text.char_indices().map(|(start, _)| start).collect();
    if starts.len() > PIECE_LETTERS_MAX {
        return Err(VocabularyMistake::Long {
            id: id as usize,
            found: starts.len(),
            limit: PIECE_LETTERS_MAX,
        });
    }
    let joined = |starts: &[usize], left: usize| {
        let start = *starts.get(left)?;
        starts.get(left + 1)?;
        let end = starts.get(left + 2).copied().unwrap_or(text.len());
        ranks.get(text.get(start..end)?).copied()
    };
    let mut pairs: Vec<Option<u32>> = (0..starts.len())
        .map(|left| joined(&starts, left))
        .collect();
    while starts.len() > 2 {
        let best = pairs
            .iter()
            .enumerate()
            .filter_map(|(left, rank)| Some(((*rank)?, left)));
        let Some((_, left)) = best.min() else {
            return Ok(None);
        };
        starts.remove(left + 1);
        pairs.remove(left + 1);
        pairs[left] = joined(&starts, left);
        if let Some(before) = left.checked_sub(1) {
            pairs[before] = joined(&starts, before);
        }
    }
    let &[_, middle] = starts.as_slice() else {
        return Ok(None);
    };
    let sides = text.split_at_checked(middle);
    let sides = sides.filter(|(left, right)| ranks.contains_key(left) && ranks.contains_key(right));
    Ok(sides.map(|(left, right)| [left, right]))
}

/// The token of a byte.
fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// Longest piece, in letters: each takes a search among the others. Chosen; SentencePiece's own default is 16, and the
/// longest known to us has 32.
const PIECE_LETTERS_MAX: usize = 256;

/// Phi 3's special tokens swallow the white space after them, which is in its `tokenizer.json` and not in GGUF: all but
/// these.
const BARE_OF_PHI: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
