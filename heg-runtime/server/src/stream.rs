//! An answer as server-sent events. They are produced when the connection has room for them: for a slow client, unread
//! tokens wait as ids in the channels of [`Choices`], not as text.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use hyper::body::{Body, Frame};
use serde::Serialize;
use serde_json::Value;

use super::State;
use super::account::{Charge, Scope};
use super::answer::{AnswerObject, ChunkPlace, Envelope, Piece, timings};
use super::answering::AnswerEvent;
use super::choices::Choices;
use super::echo::Echo;
use super::error::{ApiError, Result};
use super::log_probs::ScoredToken;
use super::preparation::Effort;
use super::request::{TokenIds, Usage};
use super::sending::Pieces;
use heg_runtime::FinishReason;
use heg_text::Said;

/// An answer that is streamed.
pub(super) struct Events {
    state: Arc<State>,
    scope: Scope,
    envelope: Envelope,
    choices: Choices,
    /// The progress of each answer.
    sent: Vec<Sent>,
    form: StreamForm,
}

/// The options of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamForm {
    pub(super) usage: Usage,
    pub(super) token_ids: TokenIds,
    /// The treatment of a token without text.
    pub(super) empty: Empty,
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

/// The treatment of a token that shows no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Empty {
    /// The token is held until the next piece of text.
    Omitted,
    /// An event is sent all the same: the id is wanted, or there is no text at all.
    Sent,
}

/// The next events, and the stream after them; `None` after the last.
type Next = (Pieces, Option<Events>);

impl Events {
    /// Creates the events of a request that the engine has accepted.
    pub(super) fn new(
        state: Arc<State>,
        scope: Scope,
        envelope: Envelope,
        choices: Choices,
        form: StreamForm,
    ) -> Self {
        let sent = || Sent {
            place: ChunkPlace::First,
            calls: 0,
            echoed_chars: 0,
            scored: Vec::new(),
        };
        Self {
            state,
            scope,
            envelope,
            sent: (0..choices.count()).map(|_| sent()).collect(),
            choices,
            form,
        }
    }

    /// Returns the charge for the memory of the answers.
    pub(super) fn charge(&self) -> Option<Arc<Charge>> {
        self.choices.charge()
    }

    /// Returns the body of the response.
    pub(super) fn body(self) -> EventsBody {
        let frames = unfold(
            (Pieces::default(), Some(self)),
            async |(mut ready, rest)| {
                let mut rest = rest;
                loop {
                    if let Some(piece) = ready.take_piece() {
                        let is_last = ready.bytes() == 0 && rest.is_none();
                        return Some(((piece, is_last), (ready, rest)));
                    }
                    (ready, rest) = rest?.next().await;
                }
            },
        );
        EventsBody {
            frames: Box::pin(frames),
            is_over: false,
        }
    }

    async fn next(mut self) -> Next {
        loop {
            let next = tokio::select! {
                biased;
                () = self.state.closing.begun() => return failed(&ApiError::ShuttingDown),
                next = self.choices.next() => next,
            };
            let Some((index, event)) = next else {
                return (Pieces::default(), None);
            };
            match event {
                Ok(AnswerEvent::Prompt(echo)) => return self.prompt(index, echo).await,
                Ok(AnswerEvent::Token { id, said, scored }) => {
                    if let Some(sent) = self.sent.get_mut(index) {
                        let chars = sent.echoed_chars;
                        sent.scored.extend(scored.map(|token| token.behind(chars)));
                    }
                    if said.is_empty() && self.form.empty == Empty::Omitted {
                        continue;
                    }
                    let token_ids = (self.form.token_ids == TokenIds::Included).then(|| vec![id]);
                    return (event_of(&self.chunk(index, said, token_ids)), Some(self));
                }
                Ok(AnswerEvent::End { said, reason }) => {
                    let (events, goes_on) = self.end(index, said, reason);
                    return (events, goes_on.then_some(self));
                }
                Err(error) => return failed(&error),
            }
        }
    }

    /// Makes the event of an echoed prompt, off the event loop if it is long.
    async fn prompt(mut self, index: usize, echo: Echo) -> Next {
        let (state, scope) = (Arc::clone(&self.state), self.scope);
        let effort = Effort::of(echo.text_bytes());
        let read = move || {
            let echoed = echo.read()?;
            if let Some(sent) = self.sent.get_mut(index) {
                sent.echoed_chars = echoed.text.chars().count();
                sent.scored = echoed.tokens;
            }
            let said = vec![Said::Text(echoed.text)];
            Ok((event_of(&self.chunk(index, said, None)), Some(self)))
        };
        let next: Result<Next> = match effort {
            Effort::Small => read(),
            _ => state.preparation.run(scope, effort, read).await,
        };
        next.unwrap_or_else(|error| failed(&error))
    }

    /// Returns the last events of an answer, and whether other answers are still running.
    fn end(&mut self, index: usize, said: Vec<Said>, reason: FinishReason) -> (Pieces, bool) {
        let mut events = Pieces::default();
        let sent = self.sent.get(index);
        let has_more =
            sent.is_some_and(|sent| sent.place == ChunkPlace::First || !sent.scored.is_empty());
        if !said.is_empty() || has_more {
            add_event(&mut events, &self.chunk(index, said, None));
        }
        if let Some(sent) = self.sent.get_mut(index) {
            sent.place = ChunkPlace::Last(reason);
        }
        let stats = self.choices.stats_of(index);
        let mut last = self.chunk(index, Vec::new(), None);
        last.timings = Some(timings(&stats));
        add_event(&mut events, &last);
        if !self.choices.are_over() {
            return (events, true);
        }
        if self.form.usage == Usage::Included {
            let usage = self.envelope.usage_chunk(&self.choices.stats());
            add_event(&mut events, &usage);
        }
        events.add(b"data: [DONE]\n\n");
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
        if self.form.usage == Usage::Included {
            chunk.usage = Some(Value::Null);
        }
        chunk
    }
}

/// The body of a stream. It knows its last frame, together with which hyper sends the end of the body.
pub(super) struct EventsBody {
    /// The frames, each with whether it is the last one.
    frames: Pin<Box<dyn Stream<Item = (Bytes, bool)> + Send>>,
    is_over: bool,
}

impl Body for EventsBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = ready!(self.frames.as_mut().poll_next(context));
        self.is_over = next.as_ref().is_none_or(|(_, is_last)| *is_last);
        Poll::Ready(next.map(|(bytes, _)| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

/// Returns the event of an error, which is the last event.
fn failed(error: &ApiError) -> Next {
    (event_of(&error.body()), None)
}

fn event_of(data: &impl Serialize) -> Pieces {
    let mut event = Pieces::default();
    add_event(&mut event, data);
    event
}

fn add_event(events: &mut Pieces, data: &impl Serialize) {
    events.add(b"data: ");
    events.add_json(data);
    events.add(b"\n\n");
}
