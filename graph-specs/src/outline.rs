//! The positions of the values in a RON file: `layer.3.1.x` → byte offset.
//!
//! Deserialised values carry no positions, and a name alone does not say which of its uses is wrong. So the text of a
//! file that RON has accepted is walked again for its shape only: fields and map keys by name, list and tuple elements
//! by index. Only used when there is a problem to locate.

use std::collections::BTreeMap;

/// Offset of each value's first character (of a string: the first one within the quotes), by path.
pub(crate) struct Outline {
    offsets: BTreeMap<String, usize>,
}

/// An open bracket, and the name or index of its next value.
struct Frame {
    /// Path of the bracket itself, followed by a dot unless it is empty.
    prefix: String,
    index: usize,
    key: Option<String>,
}

impl Outline {
    /// Walks `text`, which should be valid RON; the outline of any other text is merely useless.
    pub(crate) fn of(text: &str) -> Self {
        let mut walk = Walk {
            rest: text,
            frames: Vec::new(),
            offsets: BTreeMap::new(),
        };
        while let Some(next) = walk.next() {
            let offset = text.len() - next.len();
            walk.token(offset);
        }
        Self {
            offsets: walk.offsets,
        }
    }

    /// Offset of the value at `path`, or else of the nearest value around it.
    pub(crate) fn offset(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(offset) = self.offsets.get(path) {
                return *offset;
            }
            match path.rsplit_once('.') {
                Some((around, _)) => path = around,
                None => return 0,
            }
        }
    }
}

struct Walk<'a> {
    rest: &'a str,
    frames: Vec<Frame>,
    offsets: BTreeMap<String, usize>,
}

impl<'a> Walk<'a> {
    /// Skips space and comments; returns the text from the next token on, if there is one.
    fn next(&mut self) -> Option<&'a str> {
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.rest = &self.rest[end..];
            } else if self.rest.starts_with("/*") {
                self.rest = &self.rest[block_comment(self.rest)..];
            } else {
                return (!self.rest.is_empty()).then_some(self.rest);
            }
        }
    }

    fn token(&mut self, offset: usize) {
        let first = self.rest.chars().next().unwrap_or(' ');
        match first {
            '(' | '[' | '{' => {
                self.value(offset);
                let prefix = match self.frames.is_empty() {
                    true => String::new(),
                    false => self.path() + ".",
                };
                self.rest = &self.rest[1..];
                self.frames.push(Frame {
                    prefix,
                    index: 0,
                    key: None,
                });
            }
            ')' | ']' | '}' => {
                self.rest = &self.rest[1..];
                self.frames.pop();
            }
            ',' => {
                self.rest = &self.rest[1..];
                if let Some(frame) = self.frames.last_mut() {
                    frame.index += 1;
                    frame.key = None;
                }
            }
            _ => self.word(offset, first),
        }
    }

    /// Takes a string, a name or a number: the key of the next value if a colon follows, else a value.
    fn word(&mut self, offset: usize, first: char) {
        let text = self.rest;
        let (length, content) = match string(text) {
            Some((length, content)) => (length, content),
            None => {
                let length = text
                    .find(|c: char| !(c.is_alphanumeric() || "_+-.".contains(c)))
                    .unwrap_or(text.len())
                    .max(first.len_utf8());
                (length, 0..length)
            }
        };
        self.rest = &text[length..];
        if self.next().is_some_and(|rest| rest.starts_with(':')) {
            self.rest = &self.rest[1..];
            if let Some(frame) = self.frames.last_mut() {
                frame.key = Some(text[content].to_owned());
            }
        } else {
            self.value(offset + content.start);
        }
    }

    /// Records a value's offset; a bracket after an enum's name belongs to the value that the name began.
    fn value(&mut self, offset: usize) {
        if !self.frames.is_empty() {
            let path = self.path();
            self.offsets.entry(path).or_insert(offset);
        }
    }

    fn path(&self) -> String {
        self.frames.last().map_or_else(String::new, |frame| {
            let index = || frame.index.to_string();
            frame.prefix.clone() + &frame.key.clone().unwrap_or_else(index)
        })
    }
}

/// Length of the string literal at the start of `text`, and the range of its content.
fn string(text: &str) -> Option<(usize, std::ops::Range<usize>)> {
    let plain = text.strip_prefix('b').unwrap_or(text);
    if let Some(raw) = plain.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if let Some(content) = raw[hashes..].strip_prefix('"') {
            let start = text.len() - content.len();
            let closing = format!("\"{}", "#".repeat(hashes));
            let length = content.find(&closing).unwrap_or(content.len());
            let end = (start + length + closing.len()).min(text.len());
            return Some((end, start..start + length));
        }
    }
    let content = plain.strip_prefix('"')?;
    let start = text.len() - content.len();
    let mut escaped = false;
    let closing = content.find(|c: char| {
        let closes = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    });
    let length = closing.unwrap_or(content.len());
    let end = (start + length + 1).min(text.len());
    Some((end, start..start + length))
}

/// Length of the block comment at the start of `text`; block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            let Some(c) = rest.chars().next() else {
                return at;
            };
            at += c.len_utf8();
        }
        if depth == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r##"#![enable(implicit_some)]
// "x" and ( in a comment, /* too
Model(name: "a /* b", /* nested /* , */ "y": */
  map: {"one": 1, "two": r#"t"wo"#, },
  list: [("q", Linear(x: "ü\"", out: -1.5e3)), ("r", Add)],
  empty: [],
)"##;

    fn check(path: &str, starts: &str) {
        let at = &SAMPLE[Outline::of(SAMPLE).offset(path)..];
        assert!(at.starts_with(starts), "{path}: {at}");
    }

    #[test]
    fn values_are_found_by_path() {
        check("name", "a /* b");
        check("map", "{\"one\"");
        check("map.one", "1,");
        check("map.two", "t\"wo");
        check("list.0.0", "q\"");
        check("list.0.1", "Linear(");
        check("list.0.1.x", "ü\\\"");
        check("list.0.1.out", "-1.5e3");
        check("list.1", "(\"r\"");
        check("list.1.1", "Add)");
        check("empty", "[]");
    }

    #[test]
    fn what_is_absent_is_placed_around() {
        check("list.0.1.bias", "Linear(");
        check("list.7.1.x", "[(\"q\"");
        check("nothing.at.all", "#![enable");
    }
}
