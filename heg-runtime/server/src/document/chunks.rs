//! Answers with choices as server-sent events: OpenAI's chunks, for chat and bare completions.

use serde_json::Value;

use super::{EndStats, EventWriter, SaidToken, add_event, error_event};
use crate::answer::{AnswerObject, ChunkPlace, Envelope, Piece, timings};
use crate::answering::{AnswerEnd, AnswerStats};
use crate::echo::Echoed;
use crate::error::ApiError;
use crate::error_form::ErrorForm;
use crate::log_probs::ScoredToken;
use crate::request::{TokenIds, Usage};
use crate::sending::Pieces;
use heg_text::Said;

/// The options of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamForm {
    pub(crate) usage: Usage,
    pub(crate) token_ids: TokenIds,
    /// The treatment of a token without text.
    pub(crate) empty: Empty,
}

/// The treatment of a token that shows no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Empty {
    /// The token is held until the next piece of text.
    Omitted,
    /// An event is sent all the same: the id is wanted, or there is no text at all.
    Sent,
}

/// The writer of chunks.
pub(super) struct ChunkEvents {
    envelope: Envelope,
    /// The progress of each answer.
    sent: Vec<Sent>,
    form: StreamForm,
}

/// The progress of one answer.
struct Sent {
    /// Position of the next chunk.
    place: ChunkPlace,
    /// Number of calls sent so far.
    calls: usize,
    /// Number of characters of the prompt in front of the answer.
    echoed_chars: usize,
    /// Tokens whose text is still held back.
    scored: Vec<ScoredToken>,
}

impl ChunkEvents {
    pub(super) fn new(envelope: Envelope, count: usize, form: StreamForm) -> Self {
        let sent = || Sent {
            place: ChunkPlace::First,
            calls: 0,
            echoed_chars: 0,
            scored: Vec::new(),
        };
        Self {
            envelope,
            sent: (0..count).map(|_| sent()).collect(),
            form,
        }
    }

    fn chunk(
        &mut self,
        index: usize,
        said: Vec<Said>,
        token_ids: Option<Vec<u32>>,
    ) -> AnswerObject<'_> {
        let mut piece = Piece {
            index,
            token_ids,
            ..Piece::default()
        };
        piece.add(said);
        let mut place = ChunkPlace::Middle;
        if let Some(sent) = self.sent.get_mut(index) {
            piece.calls_before = sent.calls;
            piece.scored = std::mem::take(&mut sent.scored);
            sent.calls += piece.calls().count();
            place = std::mem::replace(&mut sent.place, ChunkPlace::Middle);
        }
        let mut chunk = self.envelope.chunk(piece, place);
        if self.form.usage == Usage::Included {
            chunk.usage = Some(Value::Null);
        }
        chunk
    }
}

impl EventWriter for ChunkEvents {
    fn begin(&mut self, _: &AnswerStats) -> Pieces {
        Pieces::default()
    }

    fn prompt(&mut self, index: usize, echoed: Echoed) -> Pieces {
        if let Some(sent) = self.sent.get_mut(index) {
            sent.echoed_chars = echoed.text.chars().count();
            sent.scored = echoed.tokens;
        }
        let mut events = Pieces::default();
        let said = vec![Said::Text(echoed.text)];
        add_event(&mut events, &self.chunk(index, said, None));
        events
    }

    fn token(&mut self, index: usize, token: SaidToken) -> Pieces {
        let mut events = Pieces::default();
        if let Some(sent) = self.sent.get_mut(index) {
            let chars = sent.echoed_chars;
            let scored = token.scored.map(|token| token.behind(chars));
            sent.scored.extend(scored);
        }
        if token.said.is_empty() && self.form.empty == Empty::Omitted {
            return events;
        }
        let token_ids = (self.form.token_ids == TokenIds::Included).then(|| vec![token.id]);
        add_event(&mut events, &self.chunk(index, token.said, token_ids));
        events
    }

    fn end(&mut self, index: usize, said: Vec<Said>, end: &AnswerEnd, stats: EndStats) -> Pieces {
        let mut events = Pieces::default();
        let sent = self.sent.get(index);
        let has_more =
            sent.is_some_and(|sent| sent.place == ChunkPlace::First || !sent.scored.is_empty());
        if !said.is_empty() || has_more {
            add_event(&mut events, &self.chunk(index, said, None));
        }
        if let Some(sent) = self.sent.get_mut(index) {
            sent.place = ChunkPlace::Last(end.reason);
        }
        let mut last = self.chunk(index, Vec::new(), None);
        last.timings = Some(timings(&stats.own));
        add_event(&mut events, &last);
        let Some(all) = stats.all else {
            return events;
        };
        if self.form.usage == Usage::Included {
            add_event(&mut events, &self.envelope.usage_chunk(&all));
        }
        events.add(b"data: [DONE]\n\n");
        events
    }

    fn failed(&mut self, error: &ApiError) -> Pieces {
        error_event(ErrorForm::OpenAi, error)
    }
}

#[cfg(test)]
#[path = "chunks_tests.rs"]
mod tests;
