//! The body of a response, with the guards that last until it is sent: the busy state of its connection, a charge.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};

/// A body, with a guard that is dropped when it is sent or when its client is gone.
pub(super) struct Sending<B, G> {
    body: B,
    _until_sent: G,
}

impl<B, G> Sending<B, G> {
    pub(super) fn new(body: B, until_sent: G) -> Self {
        Self {
            body,
            _until_sent: until_sent,
        }
    }
}

impl<B: Body + Unpin, G: Unpin> Body for Sending<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
