//! An answer as server-sent events. They are produced when the connection has room for them: what a slow client has not
//! read yet waits as token ids in the channels of [`Choices`], not as text.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use hyper::body::Frame;
use serde::Serialize;
use serde_json::Value;

use super::answer::{AnswerObject, ChunkPlace, Envelope, Piece, timings};
use super::answering::AnswerEvent;
use super::choices::Choices;
use super::log_probs::ScoredToken;
use super::request::{TokenIds, Usage};
use heg_runtime::FinishReason;
use heg_text::Said;

/// An answer that is streamed.
pub(super) struct Events {
    envelope: Envelope,
    choices: Choices,
    /// What was sent of each of them.
    sent: Vec<Sent>,
    usage: Usage,
    token_ids: TokenIds,
    /// What to do with a token without text.
    empty: Empty,
}

/// What was sent of an answer.
struct Sent {
    /// Position of the next chunk.
    place: ChunkPlace,
    /// Number of calls so far.
    calls: usize,
    /// Tokens whose text is still held back.
    scored: Vec<ScoredToken>,
}

/// What to do with a token that shows no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Empty {
    /// Hold it until the next piece of text.
    Omitted,
    /// Send an event all the same: its id is wanted, or there is no text at all.
    Sent,
}

impl Events {
    /// The events of a request that the engine has.
    pub(super) fn new(
        envelope: Envelope,
        choices: Choices,
        usage: Usage,
        token_ids: TokenIds,
        empty: Empty,
    ) -> Self {
        let sent = || Sent {
            place: ChunkPlace::First,
            calls: 0,
            scored: Vec::new(),
        };
        Self {
            envelope,
            sent: (0..choices.count()).map(|_| sent()).collect(),
            choices,
            usage,
            token_ids,
            empty,
        }
    }

    /// The frames of the response.
    pub(super) fn frames(self) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
        unfold(Some(self), async |events| {
            let mut events = events?;
            let (text, goes_on) = events.next().await;
            let rest = goes_on.then_some(events);
            Some((Ok(Frame::data(Bytes::from(text))), rest))
        })
    }

    /// The next events, and whether there are more.
    async fn next(&mut self) -> (String, bool) {
        while let Some((index, next)) = self.choices.next().await {
            let Some(sent) = self.sent.get_mut(index) else {
                break;
            };
            match next {
                Ok(AnswerEvent::Prompt(echoed)) => {
                    sent.scored = echoed.tokens;
                    let said = vec![Said::Text(echoed.text)];
                    return (event(&self.chunk(index, said, None)), true);
                }
                Ok(AnswerEvent::Token { id, said, scored }) => {
                    sent.scored.extend(scored);
                    if said.is_empty() && self.empty == Empty::Omitted {
                        continue;
                    }
                    let token_ids = (self.token_ids == TokenIds::Included).then(|| vec![id]);
                    return (event(&self.chunk(index, said, token_ids)), true);
                }
                Ok(AnswerEvent::End { said, reason }) => return self.end(index, said, reason),
                Err(error) => return (event(&error.body()), false),
            }
        }
        (String::new(), false)
    }

    /// The last events of an answer, and whether there are others.
    fn end(&mut self, index: usize, said: Vec<Said>, reason: FinishReason) -> (String, bool) {
        let mut events = String::new();
        let sent = self.sent.get(index);
        let has_more =
            sent.is_some_and(|sent| sent.place == ChunkPlace::First || !sent.scored.is_empty());
        if !said.is_empty() || has_more {
            events.push_str(&event(&self.chunk(index, said, None)));
        }
        if let Some(sent) = self.sent.get_mut(index) {
            sent.place = ChunkPlace::Last(reason);
        }
        let stats = self.choices.stats_of(index);
        let mut last = self.chunk(index, Vec::new(), None);
        last.timings = Some(timings(&stats));
        events.push_str(&event(&last));
        if !self.choices.are_over() {
            return (events, true);
        }
        if self.usage == Usage::Included {
            let usage = self.envelope.usage_chunk(&self.choices.stats());
            events.push_str(&event(&usage));
        }
        events.push_str("data: [DONE]\n\n");
        (events, false)
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
            sent.calls += piece.calls.len();
            place = std::mem::replace(&mut sent.place, ChunkPlace::Middle);
        }
        let mut chunk = self.envelope.chunk(piece, place);
        if self.usage == Usage::Included {
            chunk.usage = Some(Value::Null);
        }
        chunk
    }
}

fn event(data: &impl Serialize) -> String {
    // Only what has no names as keys cannot be written.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("data: {data}\n\n")
}
