//! The body of a response with guards that last until the system has taken its last byte: the busy state of the
//! connection, a charge.
//!
//! hyper takes a body long before it has written it, and drops the body then. It keeps the bytes, though, in a queue
//! from which it drops each piece as soon as that is written; so the pieces hold the guards.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use serde::Serialize;

/// A body, with a guard that is dropped when all of it is written or its client is gone.
pub(super) struct Sending<B, G> {
    body: B,
    until_sent: Arc<G>,
}

/// A piece of a body, with the guard of the body.
pub(super) struct Guarded<D, G> {
    data: D,
    _until_sent: Arc<G>,
}

impl<B, G> Sending<B, G> {
    pub(super) fn new(body: B, until_sent: G) -> Self {
        Self {
            body,
            until_sent: Arc::new(until_sent),
        }
    }
}

impl<B: Body + Unpin, G> Body for Sending<B, G> {
    type Data = Guarded<B::Data, G>;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        frame.map_ok(|frame| {
            frame.map_data(|data| Guarded {
                data,
                _until_sent: Arc::clone(&self.until_sent),
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<D: Buf, G> Buf for Guarded<D, G> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [io::IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(slices)
    }

    fn advance(&mut self, bytes: usize) {
        self.data.advance(bytes);
    }
}

/// A text in pieces of at most [`PIECE_BYTES`], which are freed one by one as they are written.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    full: VecDeque<Bytes>,
    /// The piece that text is being added to.
    last: Vec<u8>,
    bytes: usize,
}

impl Pieces {
    /// Serialises a value as JSON.
    pub(super) fn json(value: &impl Serialize) -> Self {
        let mut pieces = Self::default();
        pieces.add_json(value);
        pieces
    }

    /// Adds a value as JSON.
    pub(super) fn add_json(&mut self, value: &impl Serialize) {
        // Writing fails only for maps whose keys are not text.
        let _ = serde_json::to_writer(&mut *self, value);
    }

    /// Adds text.
    pub(super) fn add(&mut self, mut text: &[u8]) {
        self.bytes += text.len();
        while !text.is_empty() {
            let room = PIECE_BYTES.saturating_sub(self.last.len());
            let (now, later) = text.split_at(room.min(text.len()));
            self.last.extend_from_slice(now);
            if self.last.len() >= PIECE_BYTES {
                self.full.push_back(std::mem::take(&mut self.last).into());
            }
            text = later;
        }
    }

    /// Returns the size of the text that has not been taken yet, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the next piece.
    pub(super) fn take_piece(&mut self) -> Option<Bytes> {
        let piece = self.full.pop_front();
        let piece = piece.unwrap_or_else(|| std::mem::take(&mut self.last).into());
        self.bytes -= piece.len();
        (!piece.is_empty()).then_some(piece)
    }
}

impl From<String> for Pieces {
    fn from(text: String) -> Self {
        Self {
            full: VecDeque::new(),
            bytes: text.len(),
            last: text.into(),
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(text: Bytes) -> Self {
        Self {
            bytes: text.len(),
            full: VecDeque::from([text]),
            last: Vec::new(),
        }
    }
}

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.take_piece().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes as u64)
    }
}

/// Maximum size of a piece in bytes. Chosen: as much as a socket takes at once, and less than an allocator maps.
pub(super) const PIECE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use proptest::prelude::*;
    use tokio::net::UnixStream;

    use super::*;
    use crate::client_stream::ClientStream;

    proptest! {
        /// However a text is written, its pieces are bounded and join up to the text.
        #[test]
        fn pieces_are_the_text(parts in prop::collection::vec(0_usize..150_000, 0..6)) {
            let mut pieces = Pieces::default();
            let mut whole = Vec::new();
            for part in parts {
                let text: Vec<u8> = (0..part).map(|at| (at + whole.len()) as u8).collect();
                pieces.add(&text);
                whole.extend(text);
            }
            prop_assert_eq!(pieces.bytes(), whole.len());
            let mut said = Vec::new();
            while let Some(piece) = pieces.take_piece() {
                prop_assert!(piece.len() <= PIECE_BYTES);
                said.extend_from_slice(&piece);
            }
            prop_assert_eq!(said, whole);
            prop_assert_eq!(pieces.bytes(), 0);
        }
    }

    /// Serves one answer of this size to a client that reads some of it; returns the number of guards that are left.
    async fn guard_after(bytes: usize, reads: usize) -> usize {
        let (client, server) = UnixStream::pair().unwrap();
        let guard = Arc::new(());
        let held = Arc::clone(&guard);
        let service = service_fn(move |_: Request<hyper::body::Incoming>| {
            let body = Sending::new(Pieces::from("x".repeat(bytes)), Arc::clone(&held));
            async move { Ok::<_, Infallible>(Response::new(body.boxed_unsync())) }
        });
        let stream = TokioIo::new(ClientStream::from(server));
        let mut builder = http1::Builder::new();
        let connection = builder
            .max_buf_size(32 << 10)
            .serve_connection(stream, service);
        let connection = tokio::spawn(connection);
        client.writable().await.unwrap();
        client
            .try_write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .unwrap();
        let (mut read, mut buffer) = (0, vec![0; 64 << 10]);
        while read < reads {
            client.readable().await.unwrap();
            read += client.try_read(&mut buffer).unwrap_or_default();
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        // One is held here, one by the service.
        let left = Arc::strong_count(&guard) - 2;
        connection.abort();
        left
    }

    /// hyper has taken the whole of the last piece; the guard lasts as long as a byte of it is not written.
    #[tokio::test]
    async fn a_guard_lasts_until_the_last_byte_is_written() {
        const BYTES: usize = 4 << 20;
        // A socket buffers some hundred kilobytes.
        assert_eq!(guard_after(BYTES, 1000).await, 1);
        assert_eq!(guard_after(BYTES, BYTES / 2).await, 1);
        // The head of the response precedes the body.
        assert_eq!(guard_after(BYTES, BYTES + 50).await, 0);
    }
}
