//! Parses a server's answer as bytes arrive: server-sent events (WHATWG HTML, 9.2), and their token counts.
//!
//! Servers are not trusted. Unlike those of `eventsource-stream`, events are bounded, and bytes that are not UTF-8 are
//! no error. `heg bench-serve` connects to servers.

use serde_json::Value;

/// Maximum size of an event, in bytes; a server that sends more without a blank line is not sending events.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Splits a stream into events, wherever its packets end.
#[derive(Debug, Default)]
pub struct ReplyReader {
    line: Vec<u8>,
    data: Option<String>,
}

/// An event of more than 2^20 bytes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has no end")]
pub struct EndlessEvent;

impl ReplyReader {
    /// Returns the data of the events that these bytes complete, in order.
    ///
    /// # Errors
    ///
    /// [`EndlessEvent`], after which nothing more may be fed.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<String>, EndlessEvent> {
        let mut events = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => events.extend(self.end_line()),
                _ => self.line.push(*byte),
            }
            let data_bytes = self.data.as_ref().map_or(0, String::len);
            if self.line.len() + data_bytes > EVENT_BYTES_MAX {
                return Err(EndlessEvent);
            }
        }
        Ok(events)
    }

    /// Ends a line. A blank line ends an event; fields other than `data`, and comments, do not matter for completions.
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
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
            None => self.data = Some(value.to_owned()),
        }
        None
    }
}

/// The token counts in an event of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplyEvent {
    /// Number of tokens in the event.
    pub tokens: u32,
    /// Number of tokens of the whole answer, if the server counts them.
    pub total: Option<u32>,
}

impl ReplyEvent {
    /// Parses the data of an event of OpenAI's completions; an error is the server's own.
    pub fn of_openai(data: &str) -> Result<Self, String> {
        let Some(event) = json(data)? else {
            return Ok(Self::default());
        };
        let choice = &event["choices"][0];
        // A choice that goes on is one token, even if its text is not complete yet; the last event may have none.
        let goes_on = choice.is_object() && choice["finish_reason"].is_null();
        let has_text = choice["text"].as_str().is_some_and(|text| !text.is_empty());
        Ok(Self {
            tokens: u32::from(goes_on || has_text),
            total: count(&event["usage"]["completion_tokens"]),
        })
    }

    /// Parses the data of an event of llama.cpp's `/completion`; an error is the server's own.
    pub fn of_llama_server(data: &str) -> Result<Self, String> {
        let Some(event) = json(data)? else {
            return Ok(Self::default());
        };
        let is_last = event["stop"] == true;
        let listed = event["tokens"].as_array().map_or(0, Vec::len) as u32;
        Ok(Self {
            // The last event lists no tokens of its own.
            tokens: if is_last { 0 } else { listed.max(1) },
            total: count(&event["tokens_predicted"]).filter(|_| is_last),
        })
    }
}

/// Parses the object of an event; `None` at the end of the stream.
fn json(data: &str) -> Result<Option<Value>, String> {
    if data == "[DONE]" {
        return Ok(None);
    }
    let event: Value =
        serde_json::from_str(data).map_err(|_| format!("no JSON in an event: {data}"))?;
    match event.get("error") {
        Some(error) => Err(error["message"].as_str().unwrap_or(data).to_owned()),
        None => Ok(Some(event)),
    }
}

fn count(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|count| u32::try_from(count).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:one\r\ndata: two\r\n\r\n\ndata: é\n\ndata: cut";

    #[test]
    fn events_do_not_depend_on_where_packets_end() {
        for size in 1..STREAM.len() {
            let mut reader = ReplyReader::default();
            let packets = STREAM.as_bytes().chunks(size);
            let events = packets.flat_map(|packet| reader.feed(packet).unwrap());
            let events: Vec<String> = events.collect();
            assert_eq!(events, ["{\"a\":1}", "one\ntwo", "é"], "{size}");
        }
    }

    #[test]
    fn a_stream_without_lines_is_given_up() {
        let mut reader = ReplyReader::default();
        let endless = [b'x'; 4096];
        let found = (0..257).find_map(|_| reader.feed(&endless).err());
        assert_eq!(found, Some(EndlessEvent));
    }

    /// An earlier version copied each line with all lines before it: half a terabyte for these.
    #[test]
    fn an_event_of_a_million_lines_is_given_up_soon() {
        let mut reader = ReplyReader::default();
        let lines = b"data:\n".repeat(1 << 12);
        let found = (0..257).find_map(|_| reader.feed(&lines).err());
        assert_eq!(found, Some(EndlessEvent));
    }
}
