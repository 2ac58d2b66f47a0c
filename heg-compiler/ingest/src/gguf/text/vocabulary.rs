//! The metadata of a tokenizer, unchecked and checked.

use std::borrow::Cow;
use std::collections::HashMap;

use super::mistake::VocabularyMistake;

/// The keys `tokenizer.…` of a GGUF file, unchecked.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary<'a> {
    /// `general.architecture`; only matters for the spaces after special tokens.
    pub architecture: &'a str,
    /// Kind of the tokenizer: `tokenizer.ggml.model`.
    pub model: &'a str,
    /// Name of the way in which text is split into words: `tokenizer.ggml.pre`.
    pub pre: Option<&'a str>,
    /// Texts of the tokens, by id.
    pub tokens: Vec<&'a str>,
    /// Scores of the tokens: the higher, the earlier a token is made.
    pub scores: Option<Vec<f32>>,
    /// Types of the tokens, by the format's numbers.
    pub token_types: Option<Vec<i32>>,
    /// Merges in order, each two tokens with a space between.
    pub merges: Option<Vec<&'a str>>,
    /// Ids of the special tokens.
    pub ids: NamedIds,
    /// Whether text begins with the begin token.
    pub add_bos_token: Option<bool>,
    /// Whether text ends with the end token.
    pub add_eos_token: Option<bool>,
    /// Whether a space is put before text.
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces become one.
    pub remove_extra_whitespaces: Option<bool>,
    /// Chat templates in the order of the file.
    pub templates: Vec<TemplateOf<'a>>,
}

/// Ids of the special tokens in the metadata, unchecked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NamedIds {
    /// Begin of a text.
    pub bos: Option<u64>,
    /// End of a text.
    pub eos: Option<u64>,
    /// End of a turn.
    pub eot: Option<u64>,
    /// End of a message.
    pub eom: Option<u64>,
    /// Token for letters without one.
    pub unk: Option<u64>,
    /// Separator.
    pub sep: Option<u64>,
    /// Padding.
    pub pad: Option<u64>,
    /// Mask.
    pub mask: Option<u64>,
}

/// A chat template and its name; the main template has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateOf<'a> {
    /// Name after `tokenizer.chat_template.`.
    pub name: Option<&'a str>,
    /// Jinja source.
    pub source: &'a str,
}

/// The tokens of a vocabulary whose lists have matching lengths and whose texts are all different.
#[derive(Debug, Clone)]
pub(super) struct CheckedTokens<'a> {
    pub(super) source: &'a Vocabulary<'a>,
    pub(super) texts: Vec<Cow<'a, str>>,
    pub(super) kinds: Vec<TokenKind>,
}

/// The purpose of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl<'a> Vocabulary<'a> {
    /// Checks each list by itself, and their lengths.
    pub(super) fn checked(&'a self) -> Result<CheckedTokens<'a>, VocabularyMistake> {
        if self.model.is_empty() {
            return Err(VocabularyMistake::Missing { key: MODEL });
        }
        if self.tokens.is_empty() {
            return Err(VocabularyMistake::Missing { key: TOKENS });
        }
        let count = |key, found| match found == self.tokens.len() {
            true => Ok(()),
            false => Err(VocabularyMistake::Count {
                key,
                found,
                tokens: self.tokens.len(),
            }),
        };
        if let Some(scores) = &self.scores {
            count(SCORES, scores.len())?;
        }
        let kinds = match &self.token_types {
            None => vec![TokenKind::Normal; self.tokens.len()],
            Some(types) => {
                count(TOKEN_TYPE, types.len())?;
                let kinds = types.iter().enumerate();
                let kinds = kinds.map(|(id, &found)| {
                    TokenKind::of(found).ok_or(VocabularyMistake::Type { id, found })
                });
                kinds.collect::<Result<_, _>>()?
            }
        };
        let tokens = CheckedTokens {
            source: self,
            texts: self.tokens.iter().enumerate().map(named).collect(),
            kinds,
        };
        tokens.by_text()?;
        Ok(tokens)
    }
}

impl CheckedTokens<'_> {
    /// The id of each text.
    pub(super) fn by_text(&self) -> Result<HashMap<&str, u32>, VocabularyMistake> {
        let mut ids = HashMap::with_capacity(self.texts.len());
        for (second, text) in self.texts.iter().enumerate() {
            // An id beyond 32 bits takes a file of tens of gigabytes.
            let id = u32::try_from(second).map_err(|_| VocabularyMistake::Id {
                key: TOKENS,
                found: second as u64,
                tokens: u32::MAX as usize,
            })?;
            if let Some(first) = ids.insert(text.as_ref(), id) {
                return Err(VocabularyMistake::Twice {
                    text: text.chars().take(TEXT_SHOWN).collect(),
                    first: first as usize,
                    second,
                });
            }
        }
        Ok(ids)
    }

    /// The text of a token; ids were checked.
    pub(super) fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", |text| text.as_ref())
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }
}

impl TokenKind {
    /// The kind with a number of the format; 0 stands for a token of unspecified kind.
    fn of(number: i32) -> Option<Self> {
        match number {
            0 | 1 => Some(Self::Normal),
            2 => Some(Self::Unknown),
            3 => Some(Self::Control),
            4 => Some(Self::UserDefined),
            5 => Some(Self::Unused),
            6 => Some(Self::Byte),
            _ => None,
        }
    }
}

/// A token's text. Some vocabularies have one or more tokens without a text: they get llama.cpp's names.
fn named<'a>((id, text): (usize, &&'a str)) -> Cow<'a, str> {
    match text.is_empty() {
        true => Cow::Owned(format!("[EMPTY_{id}]")),
        false => Cow::Borrowed(text),
    }
}

pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";

/// Letters of a token shown in a message.
const TEXT_SHOWN: usize = 60;
