//! Watches a connection for heads that give the length of their body in two ways.
//!
//! hyper uses one of the two and hides the other, and a proxy in front of the server may use the other one: bytes of
//! the body for one are then a request for the other (request smuggling). So heads are read here too, from the same
//! bytes. Chunked bodies are not followed; the connection closes after them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use httparse::{EMPTY_HEADER, Header, Request, Status};

/// The position in a connection's sequence of heads and bodies.
#[derive(Debug, Default)]
pub(super) struct Framing {
    place: Place,
    ambiguity: Ambiguity,
}

/// A flag: whether an ambiguous head was seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Ambiguity(Arc<AtomicBool>);

#[derive(Debug)]
enum Place {
    /// In a head; these are its bytes so far.
    Head(Vec<u8>),
    /// In a body with this many bytes still to come.
    Body(u64),
    /// Past a message that is not followed.
    Beyond,
}

impl Default for Place {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

impl Ambiguity {
    /// Returns whether an ambiguous head was seen.
    pub(super) fn was_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Framing {
    /// Returns the flag for an ambiguous head.
    pub(super) fn ambiguity(&self) -> Ambiguity {
        self.ambiguity.clone()
    }

    /// Follows the connection through newly arrived bytes.
    pub(super) fn saw(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.place {
                Place::Body(left) => {
                    let taken = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(bytes.len());
                    *left -= taken as u64;
                    bytes = bytes.get(taken..).unwrap_or_default();
                    if *left == 0 {
                        self.place = Place::default();
                    }
                }
                Place::Head(head) => {
                    let before = head.len();
                    head.extend_from_slice(bytes);
                    // A head that arrives byte by byte is parsed only once.
                    if !has_end(head.get(before.saturating_sub(3)..).unwrap_or_default()) {
                        if head.len() > HEAD_BYTES_MAX {
                            self.place = Place::Beyond;
                        }
                        return;
                    }
                    let Some((taken, next)) = self.ambiguity.read(head) else {
                        self.place = Place::Beyond;
                        return;
                    };
                    bytes = bytes
                        .get(taken.saturating_sub(before)..)
                        .unwrap_or_default();
                    self.place = next;
                }
                Place::Beyond => return,
            }
        }
    }
}

impl Ambiguity {
    /// Parses a head: returns its length and the place after it; `None` for an invalid head, which hyper refuses.
    fn read(&self, head: &[u8]) -> Option<(usize, Place)> {
        let mut headers = [EMPTY_HEADER; HEADERS_MAX];
        let mut request = Request::new(&mut headers);
        let Ok(Status::Complete(bytes)) = request.parse(head) else {
            return None;
        };
        let find = |name: &str| {
            let is_it = |header: &&Header<'_>| header.name.eq_ignore_ascii_case(name);
            request
                .headers
                .iter()
                .find(is_it)
                .map(|header| header.value)
        };
        let length = find("content-length");
        if find("transfer-encoding").is_some() {
            self.0.fetch_or(length.is_some(), Ordering::Relaxed);
            return Some((bytes, Place::Beyond));
        }
        let length = match length {
            Some(text) => std::str::from_utf8(text).ok()?.trim().parse().ok()?,
            None => 0,
        };
        let next = match length {
            0 => Place::default(),
            length => Place::Body(length),
        };
        Some((bytes, next))
    }
}

fn has_end(text: &[u8]) -> bool {
    text.windows(2).any(|end| end == b"\n\n") || text.windows(3).any(|end| end == b"\n\r\n")
}

/// The same limit as hyper's.
const HEADERS_MAX: usize = 100;

/// Size beyond which hyper refuses a head, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const SIZED: &str =
        "POST / HTTP/1.1\r\nContent-Length: 29\r\n\r\nTransfer-Encoding: x\r\n\r\n12345";
    const CHUNKED: &str = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    const BOTH: &str =
        "POST / HTTP/1.1\r\ncontent-length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    const BOTH_TURNED: &str =
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n";

    proptest! {
        /// An ambiguous head is seen, and no other is mistaken for one, however the requests are split.
        #[test]
        fn an_ambiguous_head_is_seen(
            before in prop::collection::vec(prop::sample::select(vec![PLAIN, SIZED]), 0..4),
            (last, is_ambiguous) in prop::sample::select(vec![
                (PLAIN, false), (SIZED, false), (CHUNKED, false), (BOTH, true), (BOTH_TURNED, true),
            ]),
            sizes in prop::collection::vec(1_usize..50, 1..20),
        ) {
            let text = before.concat() + last;
            let mut framing = Framing::default();
            let (mut rest, mut sizes) = (text.as_bytes(), sizes.into_iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(sizes.next().unwrap().min(rest.len()));
                framing.saw(now);
                rest = later;
            }
            prop_assert_eq!(framing.ambiguity().was_seen(), is_ambiguous);
        }

        #[test]
        fn whatever_comes_is_followed(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut framing = Framing::default();
            framing.saw(&bytes);
            framing.saw(&bytes);
        }
    }
}
