//! An answer as server-sent events. They are produced when the connection has room for them: for a slow client, unread
//! tokens wait as ids in the channels of [`Choices`], not as text.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use hyper::body::{Body, Frame};

use super::State;
use super::account::{Charge, Scope};
use super::answering::AnswerEvent;
use super::choices::Choices;
use super::document::{AnswerDocument, EndStats, EventWriter, SaidToken, StreamForm, error_event};
use super::error::{ApiError, Result};
use super::error_form::ErrorForm;
use super::preparation::Effort;
use super::sending::Pieces;

/// An answer that is streamed.
pub(super) struct Events {
    state: Arc<State>,
    scope: Scope,
    choices: Choices,
    writer: Box<dyn EventWriter>,
    error_form: ErrorForm,
    has_begun: bool,
}

/// The next events, and the stream after them; `None` after the last.
type Next = (Pieces, Option<Events>);

/// Whether a stream has more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    More,
    Nothing,
}

impl Events {
    /// Creates the events of a request that the engine has accepted.
    pub(super) fn new(
        state: Arc<State>,
        scope: Scope,
        document: AnswerDocument,
        choices: Choices,
        form: StreamForm,
    ) -> Self {
        Self {
            state,
            scope,
            error_form: document.error_form(),
            writer: document.events(choices.count(), form),
            choices,
            has_begun: false,
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
        if !self.has_begun {
            self.has_begun = true;
            let (stats, bytes) = (self.choices.stats(), self.writer.repeated_bytes());
            let begin = move |writer: &mut dyn EventWriter| Ok(writer.begin(&stats));
            return self.write(Effort::of(bytes), Rest::More, begin).await;
        }
        loop {
            let next = tokio::select! {
                biased;
                () = self.state.closing.begun() => return self.failed(&ApiError::ShuttingDown),
                next = self.choices.next() => next,
            };
            let Some((index, event)) = next else {
                return (Pieces::default(), None);
            };
            match event {
                Ok(AnswerEvent::Prompt(echo)) => {
                    let effort = Effort::of(echo.text_bytes());
                    let prompt =
                        move |writer: &mut dyn EventWriter| Ok(writer.prompt(index, echo.read()?));
                    return self.write(effort, Rest::More, prompt).await;
                }
                Ok(AnswerEvent::Token { id, said, scored }) => {
                    let events = self.writer.token(index, SaidToken { id, said, scored });
                    if events.bytes() > 0 {
                        return (events, Some(self));
                    }
                }
                Ok(AnswerEvent::End { said, end }) => {
                    let all = self.choices.are_over().then(|| self.choices.stats());
                    let rest = match all {
                        Some(_) => Rest::Nothing,
                        None => Rest::More,
                    };
                    let own = self.choices.stats_of(index);
                    let effort = Effort::of(self.writer.repeated_bytes());
                    let end = move |writer: &mut dyn EventWriter| {
                        Ok(writer.end(index, said, &end, EndStats { own, all }))
                    };
                    return self.write(effort, rest, end).await;
                }
                Err(error) => return self.failed(&error),
            }
        }
    }

    /// Writes events, off the event loop if they are large.
    async fn write(
        mut self,
        effort: Effort,
        rest: Rest,
        write: impl FnOnce(&mut dyn EventWriter) -> Result<Pieces> + Send + 'static,
    ) -> Next {
        let (state, scope, form) = (Arc::clone(&self.state), self.scope, self.error_form);
        let work = move || {
            let events = write(&mut *self.writer)?;
            Ok((events, (rest == Rest::More).then_some(self)))
        };
        let next: Result<Next> = match effort {
            Effort::Small => work(),
            _ => state.preparation.run(scope, effort, work).await,
        };
        next.unwrap_or_else(|error| (error_event(form, &error), None))
    }

    /// Returns the event of an error, which is the last event.
    fn failed(mut self, error: &ApiError) -> Next {
        (self.writer.failed(error), None)
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
