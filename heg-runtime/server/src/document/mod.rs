//! The documents that answers are written as, one for each API: whole, or as events.
//!
//! All of them are written from the same parts: text, calls of tools, the end, and counts. What is specific to an API
//! is here and in the front that reads its requests (`request/`), and nowhere between.

mod chunks;
mod message;
mod response;

use super::answer::{Envelope, Piece};
use super::answering::{AnswerEnd, AnswerStats};
use super::echo::Echoed;
use super::error::{ApiError, Result};
use super::error_form::ErrorForm;
use super::log_probs::ScoredToken;
use super::sending::Pieces;
use heg_text::Said;
use serde::Serialize;

pub(super) use chunks::{Empty, StreamForm};
pub(super) use message::MessageDocument;
pub(super) use response::{Keeping, ResponseDocument};

/// The document that an answer is written as.
pub(super) enum AnswerDocument {
    /// An object of choices, of `/v1/chat/completions` or `/v1/completions`.
    Choices(Envelope),
    /// A message of `/v1/messages`.
    Message(MessageDocument),
    /// A response of `/v1/responses`.
    Response(Box<ResponseDocument>),
}

/// A token of an answer, with the text and calls that can be shown now.
pub(super) struct SaidToken {
    pub(super) id: u32,
    pub(super) said: Vec<Said>,
    /// The token's log probabilities, if they are asked for.
    pub(super) scored: Option<ScoredToken>,
}

/// Counts and times at the end of an answer.
pub(super) struct EndStats {
    pub(super) own: AnswerStats,
    /// Sums over all answers to the request, once the last one has ended.
    pub(super) all: Option<AnswerStats>,
}

/// Writes the events of a streamed answer. What returns no bytes has no event.
pub(super) trait EventWriter: Send {
    /// Writes the events before the answer; `stats` counts the prompt.
    fn begin(&mut self, stats: &AnswerStats) -> Pieces;
    /// Writes the prompt, which is sent back.
    fn prompt(&mut self, index: usize, echoed: Echoed) -> Pieces;
    /// Writes a token of the answer with this index.
    fn token(&mut self, index: usize, token: SaidToken) -> Pieces;
    /// Writes the end of an answer.
    fn end(&mut self, index: usize, said: Vec<Said>, end: &AnswerEnd, stats: EndStats) -> Pieces;
    /// Writes the error that ends the stream.
    fn failed(&mut self, error: &ApiError) -> Pieces;
    /// Returns the approximate size of what the first and the last events repeat of the request and the answer, in
    /// bytes.
    fn repeated_bytes(&self) -> usize {
        0
    }
}

impl AnswerDocument {
    /// Returns the name of the answer.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Choices(envelope) => &envelope.label.id,
            Self::Message(message) => &message.label.id,
            Self::Response(response) => &response.label.id,
        }
    }

    /// Returns the form of the route's errors.
    pub(super) fn error_form(&self) -> ErrorForm {
        match self {
            Self::Message(_) => ErrorForm::Anthropic,
            Self::Choices(_) | Self::Response(_) => ErrorForm::OpenAi,
        }
    }

    /// Returns the approximate size of what a whole answer repeats of the request, in bytes.
    pub(super) fn repeated_bytes(&self) -> usize {
        match self {
            Self::Choices(_) | Self::Message(_) => 0,
            Self::Response(response) => response.kept_bytes(),
        }
    }

    /// Writes whole answers, each with its end.
    pub(super) fn whole(
        self,
        mut answers: Vec<(Piece, AnswerEnd)>,
        stats: &AnswerStats,
    ) -> Result<Pieces> {
        if let Self::Choices(envelope) = &self {
            let answers = answers.into_iter().map(|(piece, end)| (piece, end.reason));
            return Ok(Pieces::json(&envelope.whole(answers.collect(), stats)));
        }
        // The other APIs have one answer.
        let Some((piece, end)) = answers.pop() else {
            return Err(ApiError::Failed {
                why: "there is no answer to write; this is a bug".to_owned(),
            });
        };
        Ok(match self {
            Self::Message(document) => document.whole(piece, &end, stats),
            Self::Response(response) => response.whole(piece, &end, stats),
            Self::Choices(_) => Pieces::default(),
        })
    }

    /// Returns the writer of the events of `count` answers.
    pub(super) fn events(self, count: usize, form: StreamForm) -> Box<dyn EventWriter> {
        match self {
            Self::Choices(envelope) => Box::new(chunks::ChunkEvents::new(envelope, count, form)),
            Self::Message(document) => Box::new(message::MessageEvents::new(document)),
            Self::Response(response) => Box::new(response::ResponseEvents::new(response)),
        }
    }
}

/// Adds an event of data alone.
fn add_event(events: &mut Pieces, data: &impl Serialize) {
    events.add(b"data: ");
    events.add_json(data);
    events.add(b"\n\n");
}

/// Adds an event with a name, which its data repeats as its type.
fn add_named(events: &mut Pieces, name: &str, data: &impl Serialize) {
    events.add(b"event: ");
    events.add(name.as_bytes());
    events.add(b"\n");
    add_event(events, data);
}

/// Returns the event of an error, in the form of a route.
pub(super) fn error_event(form: ErrorForm, error: &ApiError) -> Pieces {
    let mut events = Pieces::default();
    match form {
        ErrorForm::OpenAi => add_event(&mut events, &form.body(error)),
        ErrorForm::Anthropic => add_named(&mut events, "error", &form.body(error)),
    }
    events
}
