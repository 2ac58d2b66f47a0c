//! Server-sent events (WHATWG HTML, 9.2), as far as completions use them: their data, as bytes come in.
//!
//! Unlike those of `eventsource-stream`, events are bounded, and bytes that are no UTF-8 are no error.

/// Bytes of an event at most; a server that sends more without a blank line is none.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Takes a stream apart, wherever its packets end.
#[derive(Debug, Default)]
pub(super) struct SseReader {
    line: Vec<u8>,
    data: Option<String>,
}

/// An event of more than 2^20 bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl SseReader {
    /// The data of the events that these bytes complete, in order.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut events = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => events.extend(self.end_line()),
                _ => self.line.push(*byte),
            }
            let data_bytes = self.data.as_ref().map_or(0, String::len);
            if self.line.len() + data_bytes > EVENT_BYTES_MAX {
                return Err(TooLong);
            }
        }
        Ok(events)
    }

    /// A blank line ends an event; other fields than `data`, and comments, say nothing about completions.
    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = line.strip_suffix('\r').unwrap_or(&line);
        if line.is_empty() {
            return self.data.take();
        }
        let value = line.strip_prefix("data:")?;
        let value = value.strip_prefix(' ').unwrap_or(value);
        match &mut self.data {
            Some(data) => *data = format!("{data}\n{value}"),
            None => self.data = Some(value.to_owned()),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:one\r\ndata: two\r\n\r\n\ndata: é\n\ndata: cut";

    #[test]
    fn events_do_not_depend_on_where_packets_end() {
        for size in 1..STREAM.len() {
            let mut reader = SseReader::default();
            let packets = STREAM.as_bytes().chunks(size);
            let events = packets.flat_map(|packet| reader.feed(packet).unwrap());
            let events: Vec<String> = events.collect();
            assert_eq!(events, ["{\"a\":1}", "one\ntwo", "é"], "{size}");
        }
    }

    #[test]
    fn a_stream_without_lines_is_given_up() {
        let mut reader = SseReader::default();
        let endless = [b'x'; 4096];
        let found = (0..257).find_map(|_| reader.feed(&endless).err());
        assert_eq!(found, Some(TooLong));
    }
}
