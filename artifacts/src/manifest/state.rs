//! Baked states: the keys and values of prompts' beginnings, computed when a bundle was made, not when it is used.

use heg_spec::Activations;
use serde::{Deserialize, Serialize};

use super::ElementType;
use crate::content_id::SectionId;

/// The keys and values of the tokens that each prompt with the same system message and tools begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BakedState {
    /// Name, by which people ask for it: at most [`STATE_NAME_MAX`] of `a` to `z`, digits, `-` and `_`.
    pub name: String,
    /// The system message and tools that it was made of: JSON with `messages` and `tools`, as OpenAI's chat interface
    /// has them.
    pub beginning: SectionId,
    /// The arithmetic that computed it.
    pub form: StateForm,
    /// Tokens of a page; the last one may have fewer.
    pub page_tokens: u32,
    /// The tokens of its pages.
    pub tokens: Vec<u32>,
    /// Its pages, in order: a head of [`STATE_HEAD_BYTES`], then for each layer the rows of keys and those of values.
    pub pages: Vec<SectionId>,
}

/// All that decides the bits of a state's rows beside tokens, weights and programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateForm {
    /// Revision of the arithmetic of programs. Programs of one revision give the same bits on every machine.
    pub arithmetic: u32,
    /// Form of activations in products.
    pub activations: Activations,
    /// Element type of keys and values.
    pub kv_cache: ElementType,
}

impl BakedState {
    /// Whether a text may be a state's name. It is also one of a part, and so of a file.
    pub fn is_name(text: &str) -> bool {
        let is_allowed = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_');
        !text.is_empty() && text.len() <= STATE_NAME_MAX && text.chars().all(is_allowed)
    }
}

/// Bytes before the rows of a page, so that rows begin at a page of memory.
pub const STATE_HEAD_BYTES: u64 = 4096;

/// Most states of a bundle. Chosen: each is a part, and registries stop near 500 of those.
pub const STATES_MAX: usize = 64;

/// Most characters of a state's name. Chosen.
pub const STATE_NAME_MAX: usize = 64;

/// Most bytes of the text that a state was made of. Chosen: far more than the longest context has.
pub const BEGINNING_BYTES_MAX: u64 = 4 << 20;
