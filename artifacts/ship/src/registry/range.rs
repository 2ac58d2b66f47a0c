//! A range of a blob over HTTP, from servers that know ranges and from those that do not.

use std::io::Read;
use std::ops::Range;

use crate::error::{RECEIVE, ShipError};
use crate::oci::Digest;

use super::client::{Answer, Client, Request};

/// Asks for a range of a blob: at most its bytes, in order.
///
/// Errors: [`ShipError::Document`] for a blob that is not there and for another range; [`ShipError::Status`],
/// [`ShipError::Io`], and those of the request.
pub(super) fn blob_range<'c>(
    client: &'c Client,
    mut request: Request<'_>,
    digest: &Digest,
    range: Range<u64>,
    place: String,
) -> Result<Box<dyn Read + 'c>, ShipError> {
    if range.is_empty() {
        return Ok(Box::new(std::io::empty()));
    }
    let asked = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
    request.headers.push(("Range", asked));
    let answer = client.send(&request)?;
    let length = range.end.saturating_sub(range.start);
    match answer.status {
        206 => {
            answer.check_range(&range)?;
            Ok(Box::new(answer.reader().take(length)))
        }
        // The server does not know ranges: what comes before is read through.
        200 => {
            let mut reader = answer.reader();
            let before = std::io::copy(&mut (&mut reader).take(range.start), &mut std::io::sink());
            let before = before.map_err(ShipError::io(RECEIVE, &place))?;
            match before == range.start {
                true => Ok(Box::new(reader.take(length))),
                false => {
                    let cut = std::io::ErrorKind::UnexpectedEof.into();
                    Err(ShipError::io(RECEIVE, place)(cut))
                }
            }
        }
        404 => {
            let message = format!("it names blob `{digest}`, which is not there");
            Err(ShipError::document("the manifest", place, message))
        }
        _ => Err(answer.unexpected("206")),
    }
}

impl Answer<'_> {
    /// Compares the range that came with the one that was asked for.
    fn check_range(&self, range: &Range<u64>) -> Result<(), ShipError> {
        let found = self.header("Content-Range").unwrap_or_default();
        let expected = format!("bytes {}-{}/", range.start, range.end.saturating_sub(1));
        match found.starts_with(&expected) {
            true => Ok(()),
            false => {
                let found: String = found.chars().take(80).collect();
                let message = format!("`Content-Range` is `{found}`, expected `{expected}…`");
                Err(ShipError::document("the answer", self.url(), message))
            }
        }
    }
}
