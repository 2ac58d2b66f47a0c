//! The line to a client: its bytes, and whether it has hung up.
//!
//! A client that closes its side, or only ends what it sends, has hung up: nobody can tell the one from the other
//! before writing to it. That is noticed behind bytes that it sent ahead, too, which hyper does not look behind while
//! it answers: the kernel says so beside the bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A stream through either door.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Does the same with either stream.
macro_rules! with {
    ($stream:expr, $name:ident => $work:expr) => {
        match $stream {
            Stream::Tcp($name) => $work,
            Stream::Unix($name) => $work,
        }
    };
}

/// The bytes of a client.
#[derive(Debug)]
pub(super) struct Line(Arc<Stream>);

/// Tells when the client has hung up.
#[derive(Debug)]
pub(super) struct HangUp(Arc<Stream>);

impl From<TcpStream> for Line {
    fn from(stream: TcpStream) -> Self {
        Self(Arc::new(Stream::Tcp(stream)))
    }
}

impl From<UnixStream> for Line {
    fn from(stream: UnixStream) -> Self {
        Self(Arc::new(Stream::Unix(stream)))
    }
}

impl Line {
    pub(super) fn hang_up(&self) -> HangUp {
        HangUp(Arc::clone(&self.0))
    }
}

impl HangUp {
    /// Waits until the client sends no more.
    pub(super) async fn wait(&self) {
        // Linux tells of urgent data under this name; but the end of what comes counts as everything, and unlike
        // `READABLE` it is not there as long as bytes wait.
        let ended = with!(&*self.0, stream => stream.ready(Interest::PRIORITY).await);
        // Who waits for a stream that fails hears of it elsewhere.
        drop(ended);
    }
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(with!(&*self.0, stream => stream.poll_read_ready(context)))?;
            let room = buffer.initialize_unfilled();
            match with!(&*self.0, stream => stream.try_read(room)) {
                Ok(bytes) => {
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Line {
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
            ready!(with!(&*self.0, stream => stream.poll_write_ready(context)))?;
            match with!(&*self.0, stream => stream.try_write_vectored(slices)) {
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

    /// The stream closes when the last handle is dropped, which follows.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn tcp() -> (TcpStream, Line) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        (client, listener.accept().await.unwrap().0.into())
    }

    fn unix() -> (UnixStream, Line) {
        let (client, server) = UnixStream::pair().unwrap();
        (client, server.into())
    }

    async fn is_waiting(hang_up: &HangUp) -> bool {
        let moment = Duration::from_millis(20);
        tokio::time::timeout(moment, hang_up.wait()).await.is_err()
    }

    async fn is_noticed(hang_up: &HangUp) -> bool {
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, hang_up.wait()).await.is_ok()
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_is_noticed_behind_bytes_that_nobody_reads() {
        let (client, line) = tcp().await;
        let hang_up = line.hang_up();
        client.writable().await.unwrap();
        client.try_write(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(is_waiting(&hang_up).await, "bytes are no end");
        drop(client);
        assert!(is_noticed(&hang_up).await);

        let (client, line) = unix();
        let hang_up = line.hang_up();
        client.writable().await.unwrap();
        client.try_write(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(is_waiting(&hang_up).await, "bytes are no end");
        drop(client);
        assert!(is_noticed(&hang_up).await);
    }

    #[tokio::test]
    async fn a_client_that_ends_what_it_sends_has_hung_up() {
        let (client, line) = unix();
        let client = client.into_std().unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_noticed(&line.hang_up()).await);
    }
}
