//! HTTP at the byte level: bytes are sent unchanged, and an answer is read whole, in part or not at all.

use serde_json::Value;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A connection to the server.
pub(crate) struct Wire {
    stream: TcpStream,
    /// Received bytes that belong to no answer yet.
    ahead: Vec<u8>,
}

/// An answer, read completely.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// The outcome of waiting for an answer.
#[derive(Debug)]
pub(crate) enum Ending {
    Answered(Reply),
    /// The connection was closed before the answer was complete.
    Cut,
    /// The time limit ended first.
    GaveUp,
}

/// The status line and the headers of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// Length of the body if the answer states it; else it ends with its last chunk or the connection.
    pub(crate) body_bytes: Option<usize>,
    pub(crate) is_chunked: bool,
    /// Length of these lines in bytes.
    bytes: usize,
}

impl Wire {
    /// Opens a connection; a small receive buffer makes the server wait for a slow reader soon.
    pub(crate) fn open(port: u16, buffer_bytes: Option<usize>) -> io::Result<Self> {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        if let Some(bytes) = buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        socket.connect_timeout(&address.into(), CONNECT_PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(LOOK_INTERVAL))?;
        stream.set_write_timeout(Some(CONNECT_PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            ahead: Vec::new(),
        })
    }

    /// Checks only rarely whether an attack is over: a thousand connections that check often would take the machine's
    /// time from the server.
    pub(crate) fn look_seldom(&self) -> io::Result<()> {
        self.stream.set_read_timeout(Some(SELDOM_INTERVAL))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Ends the sending direction, which the server treats as a closed connection.
    pub(crate) fn close(self) {
        // The server may have closed it before.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Waits for an answer and reads it completely, until `is_over` returns true.
    pub(crate) fn reply(&mut self, is_over: &dyn Fn() -> bool) -> Ending {
        let head = match self.head(is_over) {
            Ok(head) => head,
            Err(ending) => return ending,
        };
        let body_begin = head.bytes;
        loop {
            let body = self.ahead.get(body_begin..).unwrap_or_default();
            let whole_bytes = match head.body_bytes {
                Some(bytes) => (body.len() >= bytes).then_some(bytes),
                None if head.is_chunked => body.ends_with(b"0\r\n\r\n").then_some(body.len()),
                None => None,
            };
            if let Some(bytes) = whole_bytes {
                let body = body.get(..bytes).unwrap_or_default();
                let body = match head.is_chunked {
                    true => Dechunker::default().feed(body),
                    false => body.to_vec(),
                };
                self.ahead.drain(..body_begin + bytes);
                return Ending::Answered(Reply {
                    status: head.status,
                    body,
                });
            }
            match self.more(is_over) {
                Ok(()) => {}
                Err(Ending::Cut) if head.body_bytes.is_none() && !head.is_chunked => {
                    let body = self.ahead.split_off(body_begin.min(self.ahead.len()));
                    return Ending::Answered(Reply {
                        status: head.status,
                        body,
                    });
                }
                Err(ending) => return ending,
            }
        }
    }

    /// Waits for the status line and headers of an answer, without consuming them.
    pub(crate) fn head(&mut self, is_over: &dyn Fn() -> bool) -> Result<Head, Ending> {
        loop {
            if let Some(head) = Head::parse(&self.ahead) {
                return Ok(head);
            }
            self.more(is_over)?;
        }
    }

    /// Leaves a head that was waited for behind.
    pub(crate) fn skip_head(&mut self, head: Head) {
        self.ahead.drain(..head.bytes.min(self.ahead.len()));
    }

    /// Reads and discards available bytes, up to a limit. Returns their number; 0 means that there were none, or that
    /// the connection was closed.
    pub(crate) fn skip(&mut self, bytes_max: usize) -> io::Result<usize> {
        let mut buffer = vec![0; bytes_max];
        match self.stream.read(&mut buffer) {
            Err(error) if is_timeout(&error) => Ok(0),
            read => read,
        }
    }

    /// Reads everything until the server closes the connection or `is_over` returns true.
    pub(crate) fn rest(&mut self, is_over: &dyn Fn() -> bool) -> Vec<u8> {
        while self.more(is_over).is_ok() {}
        std::mem::take(&mut self.ahead)
    }

    /// Waits for more of an answer, and returns all that has come.
    pub(crate) fn next_part(&mut self, is_over: &dyn Fn() -> bool) -> Result<Vec<u8>, Ending> {
        if self.ahead.is_empty() {
            self.more(is_over)?;
        }
        Ok(std::mem::take(&mut self.ahead))
    }

    fn more(&mut self, is_over: &dyn Fn() -> bool) -> Result<(), Ending> {
        let mut buffer = [0; 64 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Ending::Cut),
                Ok(read) => {
                    self.ahead
                        .extend_from_slice(buffer.get(..read).unwrap_or_default());
                    return Ok(());
                }
                Err(error) if is_timeout(&error) && is_over() => return Err(Ending::GaveUp),
                Err(error) if is_timeout(&error) => {}
                Err(_) => return Err(Ending::Cut),
            }
        }
    }
}

/// Takes a chunked body (RFC 9112, 7.1) apart as it comes.
#[derive(Debug, Default)]
pub(crate) struct Dechunker {
    /// The beginning of a chunk that is not whole yet.
    ahead: Vec<u8>,
}

impl Dechunker {
    /// The content of the chunks that these bytes complete. What is no chunk is left where it is.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.ahead.extend_from_slice(bytes);
        let mut content = Vec::new();
        while let Ok(httparse::Status::Complete((begin, length))) =
            httparse::parse_chunk_size(&self.ahead)
        {
            let end = usize::try_from(length).map_or(usize::MAX, |it| it.saturating_add(begin));
            let behind = end.saturating_add(CHUNK_END.len());
            // An empty chunk is the last one.
            if length == 0 || self.ahead.len() < behind {
                break;
            }
            content.extend_from_slice(self.ahead.get(begin..end).unwrap_or_default());
            self.ahead.drain(..behind);
        }
        content
    }
}

/// The bytes behind a chunk.
const CHUNK_END: &[u8] = b"\r\n";

impl Head {
    /// Parses the head; `None` if it is incomplete or not HTTP.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head_bytes) = response.parse(bytes).ok()? else {
            return None;
        };
        let status = response.code?;
        let value = |name: &str| -> Option<&str> {
            let found = response.headers.iter();
            let mut found = found.filter(|header| header.name.eq_ignore_ascii_case(name));
            std::str::from_utf8(found.next()?.value).ok()
        };
        let is_chunked = value("transfer-encoding").is_some_and(|how| how.contains("chunked"));
        Some(Self {
            status,
            body_bytes: value("content-length").and_then(|length| length.trim().parse().ok()),
            is_chunked,
            bytes: head_bytes,
        })
    }
}

impl Reply {
    /// The body as JSON; null if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The reason of a refusal; empty if there is none.
    pub(crate) fn reason(&self) -> String {
        let body = self.json();
        let said = body.pointer("/error/message").and_then(Value::as_str);
        said.unwrap_or_default().to_owned()
    }
}

/// A request with a JSON body from the client with this token.
pub(crate) fn post(path: &str, token: &str, body: &str) -> Vec<u8> {
    let bytes = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {bytes}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A request without a body from the client with this token.
pub(crate) fn get(path: &str, token: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n")
        .into_bytes()
}

/// Sends one request on a new connection, and waits for the answer for a limited time.
pub(crate) fn exchange(port: u16, request: &[u8], patience: Duration) -> Ending {
    let begin = Instant::now();
    let Ok(mut wire) = Wire::open(port, None) else {
        return Ending::Cut;
    };
    // The answer to a refused body may come before all of it is sent.
    let _ = wire.send(request);
    wire.reply(&|| begin.elapsed() > patience)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Interval between checks whether an attack is over. Chosen: a small part of the 100 ms after which work must end.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Chosen: all threads of a flood end before anything else is measured.
const SELDOM_INTERVAL: Duration = Duration::from_secs(1);

/// Chosen: longer than a working server takes to accept a connection or read a body.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Chosen: several times the number that the server sends.
const HEADERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn chunks_are_taken_apart_wherever_packets_end() {
        let body = b"5\r\nhello\r\n1;a=b\r\n \r\n6\r\nworld\n\r\n0\r\n\r\n";
        for size in 1..=body.len() {
            let mut chunks = Dechunker::default();
            let read = body.chunks(size).flat_map(|packet| chunks.feed(packet));
            assert_eq!(read.collect::<Vec<u8>>(), b"hello world\n", "{size}");
        }
    }

    /// Answers one connection with `bytes`, then closes it.
    fn answered(bytes: &'static [u8]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1000]);
            stream.write_all(bytes).unwrap();
        });
        port
    }

    fn asked(bytes: &'static [u8]) -> Ending {
        exchange(answered(bytes), &get("/", "x"), Duration::from_secs(20))
    }

    #[test]
    fn answers_end_at_their_length_their_last_chunk_or_with_the_connection() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nnope"[..],
            b"HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n4\r\nnope\r\n0\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\n\r\nnope",
        ] {
            let Ending::Answered(reply) = asked(bytes) else {
                panic!("no answer");
            };
            assert_eq!(reply.status, 400);
            assert!(String::from_utf8_lossy(&reply.body).contains("nope"));
        }
    }

    #[test]
    fn an_answer_that_is_broken_off_is_cut() {
        let ending = asked(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfour");
        assert!(matches!(ending, Ending::Cut), "{ending:?}");
    }

    #[test]
    fn a_refusal_gives_its_reason() {
        let reply = Reply {
            status: 400,
            body: br#"{"error": {"message": "too deep"}}"#.to_vec(),
        };
        assert_eq!(reply.reason(), "too deep");
        assert_eq!(Reply::default().reason(), "");
    }
}
