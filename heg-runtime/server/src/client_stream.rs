//! The stream to a client, and a watch for the client closing it.
//!
//! A client that closes its connection, or only its own side of it, counts as gone: the two cannot be told apart before
//! something is written. While hyper answers, it reads on to notice a close, unless the client has sent further bytes.
//! So this asks the kernel, which knows of the close even while bytes wait to be read, if the system can say that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::framing::{Ambiguity, Framing};
use super::platform::{LocalStream, local_closed, tcp_closed};

/// The stream of an accepted connection.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Local(LocalStream),
}

/// Applies an expression to either stream.
macro_rules! with {
    ($stream:expr, $name:ident => $work:expr) => {
        match $stream {
            Stream::Tcp($name) => $work,
            Stream::Local($name) => $work,
        }
    };
}

/// A client's stream over either transport.
#[derive(Debug)]
pub(super) struct ClientStream {
    stream: Arc<Stream>,
    framing: Framing,
}

/// Waits for the client to close its side.
#[derive(Debug)]
pub(super) struct Closed(Arc<Stream>);

impl From<TcpStream> for ClientStream {
    fn from(stream: TcpStream) -> Self {
        Self::new(Stream::Tcp(stream))
    }
}

impl From<LocalStream> for ClientStream {
    fn from(stream: LocalStream) -> Self {
        Self::new(Stream::Local(stream))
    }
}

impl ClientStream {
    fn new(stream: Stream) -> Self {
        Self {
            stream: Arc::new(stream),
            framing: Framing::default(),
        }
    }

    /// Returns a handle that reports the close while other code owns the stream.
    pub(super) fn closed(&self) -> Closed {
        Closed(Arc::clone(&self.stream))
    }

    /// Returns the flag that says whether a head with two lengths for its body was read.
    pub(super) fn ambiguity(&self) -> Ambiguity {
        self.framing.ambiguity()
    }
}

impl Closed {
    /// Waits until the client has closed its side.
    pub(super) async fn wait(&self) {
        match &*self.0 {
            Stream::Tcp(stream) => tcp_closed(stream).await,
            Stream::Local(stream) => local_closed(stream).await,
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(with!(&*self.stream, stream => stream.poll_read_ready(context)))?;
            let room = buffer.initialize_unfilled();
            match with!(&*self.stream, stream => stream.try_read(room)) {
                Ok(bytes) => {
                    self.framing.saw(room.get(..bytes).unwrap_or_default());
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(with!(&*self.stream, stream => stream.poll_write_ready(context)))?;
            match with!(&*self.stream, stream => stream.try_write_vectored(slices)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The stream closes when the last handle is dropped, soon after this.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::UnixStream;

    use super::*;

    async fn tcp() -> (TcpStream, ClientStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        (client, listener.accept().await.unwrap().0.into())
    }

    fn unix() -> (UnixStream, ClientStream) {
        let (client, server) = UnixStream::pair().unwrap();
        (client, server.into())
    }

    async fn is_waiting(closed: &Closed) -> bool {
        let moment = Duration::from_millis(20);
        tokio::time::timeout(moment, closed.wait()).await.is_err()
    }

    async fn is_noticed(closed: &Closed) -> bool {
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, closed.wait()).await.is_ok()
    }

    #[tokio::test]
    async fn a_closed_stream_is_noticed_behind_bytes_that_nobody_reads() {
        let (client, stream) = tcp().await;
        let closed = stream.closed();
        client.writable().await.unwrap();
        client.try_write(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(is_waiting(&closed).await, "bytes are no end");
        drop(client);
        assert!(is_noticed(&closed).await);

        let (client, stream) = unix();
        let closed = stream.closed();
        client.writable().await.unwrap();
        client.try_write(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(is_waiting(&closed).await, "bytes are no end");
        drop(client);
        assert!(is_noticed(&closed).await);
    }

    #[tokio::test]
    async fn a_stream_that_is_closed_on_one_side_counts_as_closed() {
        let (client, stream) = unix();
        let client = client.into_std().unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_noticed(&stream.closed()).await);
    }
}
