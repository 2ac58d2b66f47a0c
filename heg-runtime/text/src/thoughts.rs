//! Thoughts of a model before its answer, split from the answer's text while it arrives.
//!
//! A thinking model writes its thought between two markers, at the beginning of an answer. Some templates write the
//! opening marker themselves, as the end of the prompt. White space around a marker belongs to neither part, as in
//! llama.cpp. Markers elsewhere are text.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::tools::clear_bytes;
use super::{AnswerForm, ChatTemplate, Result, TextStream, Tokenizer};

/// A model's markers of what it thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThoughtSyntax {
    /// `<think>` and `</think>`: Qwen 3, DeepSeek R1, SmolLM3.
    Tagged,
    /// `[THINK]` and `[/THINK]`: Mistral.
    Bracketed,
}

/// The place where a thought begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThoughtOpening {
    /// The prompt ends with the opening marker.
    InPrompt,
    /// The answer may begin with the opening marker.
    InAnswer,
}

impl ThoughtSyntax {
    /// All markers that are known.
    pub(super) const ALL: [Self; 2] = [Self::Tagged, Self::Bracketed];

    /// Returns the markers that a chat template knows: it cuts earlier thoughts out of messages, or opens a new one.
    /// `None` if it knows none.
    pub fn of(template: &ChatTemplate) -> Option<Self> {
        let source = template.source();
        Self::ALL
            .into_iter()
            .find(|it| source.contains(it.closing()))
    }

    /// Returns the markers that are special tokens, so that decoding leaves them out: for
    /// [`TextStream::showing`].
    pub fn special_tokens(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let ids = self
            .markers()
            .into_iter()
            .filter_map(|text| tokenizer.token_id(text));
        ids.filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// Returns a parser of the answer to a prompt.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn parser(self, prompt: &[u32], tokenizer: &Arc<Tokenizer>) -> Result<ThoughtParser> {
        let shown = self.special_tokens(tokenizer);
        let mut stream = TextStream::new(Arc::clone(tokenizer)).showing(shown);
        let end = prompt.len().saturating_sub(PROMPT_END_TOKENS);
        let mut text = String::new();
        for token in prompt.iter().skip(end) {
            text.extend(stream.push(*token)?);
        }
        text.extend(stream.finish()?);
        Ok(ThoughtParser::new(self, &text))
    }

    /// Returns the opening and the closing marker.
    pub(super) fn markers(self) -> [&'static str; 2] {
        match self {
            Self::Tagged => ["<think>", "</think>"],
            Self::Bracketed => ["[THINK]", "[/THINK]"],
        }
    }

    fn opening(self) -> &'static str {
        let [opening, _] = self.markers();
        opening
    }

    fn closing(self) -> &'static str {
        let [_, closing] = self.markers();
        closing
    }
}

/// A piece of an answer: first what was thought, then what was said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThoughtSplit {
    /// The thought.
    pub thought: String,
    /// The text behind it.
    pub text: String,
}

/// Splits an answer that arrives in pieces into a thought and the text behind it.
///
/// # Invariants
/// - `held` is white space and a possible beginning of a marker, and empty in `State::Text`.
#[derive(Debug, Clone)]
pub struct ThoughtParser {
    syntax: ThoughtSyntax,
    state: State,
    held: String,
    /// Number of pieces so far, up to the thought's end.
    pieces: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only white space has arrived: a thought may begin.
    Fresh,
    /// Only white space has arrived behind a prompt that ends with the opening marker, which the model may repeat.
    Opened,
    /// In a thought; only white space of it has arrived.
    Blank,
    /// In a thought.
    Thought,
    /// Only white space has arrived behind a thought.
    Behind,
    /// In the text.
    Text,
}

impl ThoughtParser {
    /// Creates a parser at the beginning of the answer to a prompt that ends with this text.
    pub fn new(syntax: ThoughtSyntax, prompt_end: &str) -> Self {
        let state = match prompt_end.trim_end().ends_with(syntax.opening()) {
            true => State::Opened,
            false => State::Fresh,
        };
        Self {
            syntax,
            state,
            held: String::new(),
            pieces: 0,
        }
    }

    /// Returns a parser of the answer to a prompt that a template made; `None` if the template knows no thoughts.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn of(
        template: &ChatTemplate,
        prompt: &[u32],
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Option<Self>> {
        let syntax = ThoughtSyntax::of(template);
        let parser = syntax.map(|syntax| syntax.parser(prompt, tokenizer));
        parser.transpose()
    }

    /// Returns the markers that the parser looks for.
    pub fn syntax(&self) -> ThoughtSyntax {
        self.syntax
    }

    /// Returns the form of an answer that has not begun, with a place for the thought before it.
    pub fn before(&self, form: AnswerForm) -> AnswerForm {
        AnswerForm::BehindThought {
            syntax: self.syntax,
            opening: match self.state {
                State::Opened => ThoughtOpening::InPrompt,
                _ => ThoughtOpening::InAnswer,
            },
            form: Box::new(form),
        }
    }

    /// Returns the number of pieces that the thought came in, with its markers; 0 if there is none so far.
    pub fn pieces(&self) -> u32 {
        match self.state {
            State::Fresh => 0,
            _ => self.pieces,
        }
    }

    /// Takes the next piece of text; returns what is certain now.
    pub fn push(&mut self, piece: &str) -> ThoughtSplit {
        if !matches!(self.state, State::Behind | State::Text) {
            self.pieces += 1;
        }
        self.held.push_str(piece);
        let mut split = ThoughtSplit::default();
        while self.advance(&mut split) {}
        split
    }

    /// Ends the answer; returns what was held back. A thought without an end is a thought all the same.
    pub fn finish(&mut self) -> ThoughtSplit {
        let held = std::mem::take(&mut self.held);
        let mut split = ThoughtSplit::default();
        match self.state {
            State::Fresh | State::Text => split.text = held,
            State::Opened | State::Blank => split.thought = held.trim().to_owned(),
            State::Thought => split.thought = held.trim_end().to_owned(),
            State::Behind => {}
        }
        split
    }

    /// Does one step; returns whether another may follow.
    fn advance(&mut self, split: &mut ThoughtSplit) -> bool {
        let opening = self.syntax.opening();
        let next = match self.state {
            State::Fresh | State::Opened => {
                let rest = self.held.trim_start();
                let blank = self.held.len() - rest.len();
                if rest.starts_with(opening) {
                    self.held.drain(..blank + opening.len());
                    State::Blank
                } else if opening.starts_with(rest) {
                    return false;
                } else if self.state == State::Opened {
                    State::Blank
                } else {
                    self.pieces = 0;
                    State::Text
                }
            }
            State::Blank | State::Behind => {
                let rest = self.held.trim_start();
                self.held.drain(..self.held.len() - rest.len());
                match self.state {
                    _ if self.held.is_empty() => return false,
                    State::Blank => State::Thought,
                    _ => State::Text,
                }
            }
            State::Thought => return self.think(split),
            State::Text => {
                split.text.push_str(&self.held);
                self.held.clear();
                return false;
            }
        };
        self.state = next;
        true
    }

    /// Goes on in a thought; returns whether that has ended.
    fn think(&mut self, split: &mut ThoughtSplit) -> bool {
        let closing = self.syntax.closing();
        let end = self.held.find(closing);
        let clear = end.unwrap_or_else(|| clear_bytes(&self.held, closing));
        let thought = self.held[..clear].trim_end();
        split.thought.push_str(thought);
        let taken = match end {
            Some(end) => end + closing.len(),
            None => thought.len(),
        };
        self.held.drain(..taken);
        if end.is_some() {
            self.state = State::Behind;
        }
        end.is_some()
    }
}

/// Most tokens of a prompt's end that are searched for an opening marker: one for each letter, and white space.
const PROMPT_END_TOKENS: usize = 16;

#[cfg(test)]
mod tests;
