//! Answers as they arrive: what a model thinks first goes to standard error, so that standard output has the answer alone.

use std::io::Write;

use heg_text::{ThoughtParser, ThoughtSplit};

use crate::terminal::{dimmed, shown};

/// The output form of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Text, as it arrives.
    Text,
    /// One JSON object on one line, once the answer is complete.
    Json,
}

impl Output {
    /// Returns the form that `--json` chooses.
    pub(crate) fn of(json: bool) -> Self {
        match json {
            true => Self::Json,
            false => Self::Text,
        }
    }
}

/// The text of an answer so far, in two parts.
pub(crate) struct Told {
    /// What tells the parts apart, if the model may think.
    pub(crate) thoughts: Option<ThoughtParser>,
    output: Output,
    /// What the model thought first.
    pub(crate) thought: String,
    /// The answer.
    pub(crate) text: String,
}

impl Told {
    pub(crate) fn new(thoughts: Option<ThoughtParser>, output: Output) -> Self {
        Self {
            thoughts,
            output,
            thought: String::new(),
            text: String::new(),
        }
    }

    /// Returns the thought, if there is one.
    pub(crate) fn thought(&self) -> Option<&str> {
        (!self.thought.is_empty()).then_some(&self.thought)
    }

    /// Adds a piece, and shows it unless the answer is shown as JSON.
    pub(crate) fn push(&mut self, piece: &str) {
        let split = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(piece),
            None => ThoughtSplit {
                text: piece.to_owned(),
                ..ThoughtSplit::default()
            },
        };
        self.add(&split);
    }

    /// Ends the answer and its line.
    pub(crate) fn finish(&mut self) {
        let rest = self.thoughts.as_mut().map(ThoughtParser::finish);
        self.add(&rest.unwrap_or_default());
        if self.output == Output::Text {
            if self.text.is_empty() && self.thought().is_some() {
                eprintln!();
            }
            println!();
        }
    }

    fn add(&mut self, ThoughtSplit { thought, text }: &ThoughtSplit) {
        if self.output == Output::Text {
            eprint!("{}", dimmed(thought));
            let begins = self.text.is_empty() && !text.is_empty();
            if begins && !(self.thought.is_empty() && thought.is_empty()) {
                eprint!("\n\n");
            }
            print!("{}", shown(text));
            // A closed output is noticed at the end of the answer, by `println`.
            let _ = std::io::stdout().flush();
        }
        self.thought.push_str(thought);
        self.text.push_str(text);
    }
}
