//! An answer as server-sent events. They are produced when the connection has room for them: what a slow client has not
//! read yet waits as token ids in the channel of [`Answering`], not as text.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use hyper::body::Frame;
use serde_json::Value;

use super::answer::{ChunkPlace, Envelope, Piece, timings};
use super::answering::{AnswerEvent, Answering};
use super::request::{TokenIds, Usage};
use heg_runtime::FinishReason;
use heg_text::Said;

/// An answer that is streamed.
pub(super) struct Events {
    envelope: Envelope,
    answering: Answering,
    usage: Usage,
    token_ids: TokenIds,
    /// Position of the next chunk.
    place: ChunkPlace,
    /// Number of calls so far.
    calls: usize,
    /// What to do with a token without text.
    empty: Empty,
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
        answering: Answering,
        usage: Usage,
        token_ids: TokenIds,
        empty: Empty,
    ) -> Self {
        Self {
            envelope,
            answering,
            usage,
            token_ids,
            place: ChunkPlace::First,
            calls: 0,
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
        loop {
            match self.answering.next().await {
                Ok(AnswerEvent::Token { said, .. })
                    if said.is_empty() && self.empty == Empty::Omitted => {}
                Ok(AnswerEvent::Token { id, said }) => {
                    let token_ids = (self.token_ids == TokenIds::Included).then(|| vec![id]);
                    let chunk = self.chunk(said, token_ids);
                    return (event(&chunk), true);
                }
                Ok(AnswerEvent::End { said, reason }) => return (self.end(said, reason), false),
                Err(error) => return (event(&error.body()), false),
            }
        }
    }

    fn end(&mut self, said: Vec<Said>, reason: FinishReason) -> String {
        let mut events = String::new();
        if !said.is_empty() || self.place == ChunkPlace::First {
            events.push_str(&event(&self.chunk(said, None)));
        }
        self.place = ChunkPlace::Last(reason);
        let mut last = self.chunk(Vec::new(), None);
        last["timings"] = timings(self.answering.stats());
        events.push_str(&event(&last));
        if self.usage == Usage::Included {
            let usage = self.envelope.usage_chunk(self.answering.stats());
            events.push_str(&event(&usage));
        }
        events.push_str("data: [DONE]\n\n");
        events
    }

    fn chunk(&mut self, said: Vec<Said>, token_ids: Option<Vec<u32>>) -> Value {
        let mut piece = Piece {
            token_ids,
            calls_before: self.calls,
            ..Piece::default()
        };
        piece.add(said);
        self.calls += piece.calls.len();
        let mut chunk = self.envelope.chunk(piece, self.place);
        if self.usage == Usage::Included {
            chunk["usage"] = Value::Null;
        }
        self.place = ChunkPlace::Middle;
        chunk
    }
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}
