//! Finds tool calls in an answer's text while it arrives.
//!
//! A call is returned when it is complete. Text that looks like a call and is not one (no JSON, no name, cut off) stays
//! text, as the model wrote it: nothing is repaired and nothing is lost.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::ToolSyntax;

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// The arguments as the model wrote them: the JSON text of an object.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The model's thought before its answer. [`ThoughtParser`](crate::ThoughtParser) finds it.
    Thought(String),
    /// Text for the user.
    Text(String),
    /// A call.
    Call(ToolCall),
}

/// Splits an answer that arrives in pieces into text and calls.
///
/// White space beside a call belongs to neither.
///
/// # Invariants
/// - `held` begins with the syntax's opening if `state` is `Inside`. Otherwise it is white space and a possible
///   beginning of a call.
#[derive(Debug)]
pub struct ToolCallParser {
    syntax: ToolSyntax,
    state: State,
    held: String,
    /// The end of a call's object, as far as `held` is known.
    object: ObjectEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only white space has arrived since the beginning, or since a call.
    Fresh,
    /// In text.
    Text,
    /// In text that began like a call.
    Inside,
}

impl ToolCallParser {
    /// Creates a parser at the beginning of an answer.
    pub fn new(syntax: ToolSyntax) -> Self {
        Self {
            syntax,
            state: State::Fresh,
            held: String::new(),
            object: ObjectEnd::default(),
        }
    }

    /// Takes the next piece of text; returns the parts that are certain now.
    pub fn push(&mut self, piece: &str) -> Vec<Said> {
        self.held.push_str(piece);
        let mut said = Vec::new();
        while self.advance(&mut said) {}
        said
    }

    /// Ends the answer; returns the parts that were held back. The parser is then at the beginning of an answer again.
    pub fn finish(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        let held = std::mem::take(&mut self.held);
        match (self.state, calls_in(self.syntax, &held)) {
            (State::Inside, Some(calls)) => said.extend(calls.into_iter().map(Said::Call)),
            // After a call, or in an empty answer.
            (State::Fresh, _) if held.trim().is_empty() => {}
            _ if held.is_empty() => {}
            _ => said.push(Said::Text(held)),
        }
        *self = Self::new(self.syntax);
        said
    }

    /// Does one step; returns whether another may follow.
    fn advance(&mut self, said: &mut Vec<Said>) -> bool {
        if self.state == State::Inside {
            return self.leave_call(said);
        }
        let call = match self.syntax.opening() {
            Some(opening) => self.held.find(opening),
            // Only an answer that begins like a call is one.
            None if self.state == State::Text => None,
            None => {
                let start = self.held.len() - self.held.trim_start().len();
                self.held[start..].starts_with('{').then_some(start)
            }
        };
        let opening = self.syntax.opening().unwrap_or_default();
        let clear = call.unwrap_or_else(|| clear_bytes(&self.held, opening));
        let rest = self.held.split_off(self.held[..clear].trim_end().len());
        let text = std::mem::replace(&mut self.held, rest);
        let text = match self.state {
            State::Fresh => text.trim_start(),
            _ => &text,
        };
        if !text.is_empty() {
            said.push(Said::Text(text.to_owned()));
            self.state = State::Text;
        }
        if call.is_some() {
            self.held
                .drain(..self.held.len() - self.held.trim_start().len());
            self.state = State::Inside;
            self.object = ObjectEnd::default();
        }
        call.is_some()
    }

    /// Looks for the end of text that began like a call. Without a closing, only the end of the answer is one.
    fn leave_call(&mut self, said: &mut Vec<Said>) -> bool {
        let (Some(opening), Some(closing)) = (self.syntax.opening(), self.syntax.closing()) else {
            return false;
        };
        let body = &self.held[opening.len()..];
        let call = match self.object.find(body.as_bytes()) {
            Found::Open => return false,
            Found::At(end) => {
                let (object, rest) = body.split_at(end);
                let rest = rest.trim_start();
                if closing.starts_with(rest) && rest != closing {
                    return false;
                }
                let read = serde_json::from_str::<Written<'_>>(object).ok();
                read.filter(|_| rest.starts_with(closing))
                    .map(|written| (written.call(), self.held.len() - rest.len()))
            }
            Found::Nothing => None,
        };
        if let Some((call, end)) = call {
            said.push(Said::Call(call));
            self.held.drain(..end + closing.len());
            self.state = State::Fresh;
        } else {
            // Not the whole of `held`, since the next call may have begun.
            said.push(Said::Text(self.held.drain(..opening.len()).collect()));
            self.state = State::Text;
        }
        true
    }
}

/// Returns the number of bytes of a text that cannot be the beginning of a marker, which is not in the text.
pub(crate) fn clear_bytes(text: &str, marker: &str) -> usize {
    let begins = |&start: &usize| marker.starts_with(&text[start..]);
    let starts = text.char_indices().map(|(start, _)| start);
    let last = text.len().saturating_sub(marker.len());
    let open = starts.skip_while(|&start| start < last).find(begins);
    open.unwrap_or(text.len())
}

/// Finds the end of a JSON object that arrives in pieces, visiting each byte once. The content of the object is not
/// checked.
#[derive(Debug, Default)]
struct ObjectEnd {
    at: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

enum Found {
    /// The object may go on.
    Open,
    /// The object ends before this byte.
    At(usize),
    /// The text is not an object.
    Nothing,
}

impl ObjectEnd {
    /// Continues the search in `bytes`, which only grows.
    fn find(&mut self, bytes: &[u8]) -> Found {
        if self.at > 0 && self.depth == 0 && bytes[self.at - 1] == b'}' {
            return Found::At(self.at);
        }
        while let Some(&byte) = bytes.get(self.at) {
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' if self.depth > 0 => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' | b'[' if self.depth > 0 || byte == b'{' => self.depth += 1,
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'}' if self.depth == 1 => {
                    self.depth = 0;
                    return Found::At(self.at);
                }
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if self.depth > 0 => {}
                _ => return Found::Nothing,
            }
        }
        Found::Open
    }
}

/// Returns the calls in the rest of an answer; `None` if it is something else.
fn calls_in(syntax: ToolSyntax, rest: &str) -> Option<Vec<ToolCall>> {
    let body = rest.strip_prefix(syntax.opening().unwrap_or_default())?;
    let written = match syntax {
        ToolSyntax::Listed(_) => serde_json::from_str(body).ok()?,
        ToolSyntax::Bare(_) | ToolSyntax::Tagged => vec![serde_json::from_str(body).ok()?],
    };
    let calls = written.into_iter().map(Written::call).collect::<Vec<_>>();
    (!calls.is_empty()).then_some(calls)
}

/// A call as models write it; `id` and other fields are ignored.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, alias = "parameters", deserialize_with = "object")]
    arguments: &'a RawValue,
}

impl Written<'_> {
    fn call(self) -> ToolCall {
        ToolCall {
            name: self.name.into_owned(),
            arguments: self.arguments.get().to_owned(),
        }
    }
}

/// Reads the text of an object.
fn object<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<&'de RawValue, D::Error> {
    let value = <&RawValue>::deserialize(deserializer)?;
    if value.get().starts_with('{') {
        return Ok(value);
    }
    Err(serde::de::Error::custom("the arguments are not an object"))
}

#[cfg(test)]
mod tests;
