//! A client that sends and reads raw bytes, so that tests control everything on the wire.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use heg_server::Address;
use serde_json::Value;

/// A connection over either transport.
pub(crate) enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Headers, with names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Connection {
    pub(crate) fn open(address: &Address) -> io::Result<Self> {
        let patience = Some(Duration::from_secs(60));
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(patience)?;
                Ok(Self::Tcp(stream))
            }
            Address::Local(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(patience)?;
                Ok(Self::Unix(stream))
            }
        }
    }

    /// Sends a request with a JSON body, after which the connection closes.
    pub(crate) fn post(&mut self, path: &str, headers: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        self.write_all(request.as_bytes())
    }

    /// Reads until the server closes the connection.
    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        let mut bytes = Vec::new();
        // A server that closes before it has read everything resets the connection; its answer arrived before.
        let read = self.read_to_end(&mut bytes);
        if bytes.is_empty() {
            read?;
        }
        Reply::parse(&String::from_utf8_lossy(&bytes))
            .ok_or_else(|| io::Error::other(format!("no response: {bytes:?}")))
    }

    /// Reads at least until `text` has arrived.
    pub(crate) fn read_until(&mut self, text: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let read = self.read(&mut buffer)?;
            bytes.extend_from_slice(&buffer[..read]);
            let so_far = String::from_utf8_lossy(&bytes);
            if so_far.contains(text) {
                return Ok(so_far.into_owned());
            }
            if read == 0 {
                return Err(io::Error::other(format!("`{text}` did not come: {so_far}")));
            }
        }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Reply {
    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let mut reply = Self {
            status,
            headers,
            body: body.to_owned(),
        };
        if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = joined_chunks(body)?;
        }
        Some(reply)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// Returns the data of a stream's events; the last one is `[DONE]`.
    pub(crate) fn events(&self) -> Vec<&str> {
        let lines = self.body.split("\n\n");
        lines
            .filter_map(|line| line.strip_prefix("data: "))
            .collect()
    }
}

fn joined_chunks(mut body: &str) -> Option<String> {
    let mut joined = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(joined);
        }
        joined.push_str(rest.get(..length)?);
        body = rest.get(length + 2..)?;
    }
}
