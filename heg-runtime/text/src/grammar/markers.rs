//! Words that mark parts of an answer, as symbols of grammars.

use super::super::Tokenizer;
use super::super::thoughts::ThoughtSyntax;

/// Markers that are tokens of the vocabulary and have no text: `<[42]>` in a grammar.
#[derive(Default)]
pub(super) struct Markers(Vec<(&'static str, u32)>);

impl Markers {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let of_thoughts = ThoughtSyntax::ALL.iter().flat_map(|it| it.markers());
        let known = OF_CALLS
            .into_iter()
            .chain(of_thoughts)
            .filter_map(|text| Some((text, tokenizer.token_id(text)?)));
        Self(known.filter(|&(_, id)| tokenizer.is_special(id)).collect())
    }

    #[cfg(test)]
    pub(super) fn of(tokens: impl Into<Vec<(&'static str, u32)>>) -> Self {
        Self(tokens.into())
    }

    pub(super) fn token(&self, marker: &str) -> Option<String> {
        let found = self.0.iter().find(|(text, _)| *text == marker);
        found.map(|(_, id)| format!("<[{id}]>"))
    }

    /// Returns a marker as a symbol of the grammar.
    pub(super) fn symbol(&self, marker: &str) -> String {
        self.token(marker).unwrap_or_else(|| format!("{marker:?}"))
    }
}

/// Words around calls that may be special tokens of a vocabulary.
const OF_CALLS: [&str; 6] = [
    "<tool_call>",
    "</tool_call>",
    "<|tool_call|>",
    LIST_END,
    "[TOOL_CALLS]",
    PYTHON_TAG,
];

/// A marker that may come before a call of Llama 3.
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";

/// A marker that may come after the calls of Phi 4.
pub(super) const LIST_END: &str = "<|/tool_call|>";
