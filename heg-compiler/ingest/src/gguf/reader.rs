//! A position in a GGUF file: every read is checked against the file's end.

#![deny(clippy::arithmetic_side_effects)]

use std::path::Path;

use super::super::error::IngestError;
use super::mistake::GgufMistake;
use super::value::{Array, KINDS, Kind, Value};

/// A position in a file, with the checks of everything that is read there.
pub(super) struct Reader<'a, 'p> {
    path: &'p Path,
    file: &'a [u8],
    /// Offset in the file of the next read.
    pub(super) at: usize,
}

impl<'a, 'p> Reader<'a, 'p> {
    pub(super) fn new(path: &'p Path, file: &'a [u8]) -> Self {
        Self { path, file, at: 0 }
    }

    /// The error for a mistake at the present position.
    pub(super) fn error(&self, mistake: GgufMistake) -> IngestError {
        self.error_at(self.at, mistake)
    }

    pub(super) fn error_at(&self, at: usize, mistake: GgufMistake) -> IngestError {
        IngestError::Gguf {
            path: self.path.to_owned(),
            byte: at as u64,
            mistake,
        }
    }

    fn left(&self) -> u64 {
        self.file.len().saturating_sub(self.at) as u64
    }

    /// Returns the next `bytes` bytes.
    pub(super) fn take(&mut self, what: &'static str, bytes: u64) -> Result<&'a [u8], IngestError> {
        let taken = usize::try_from(bytes).ok().and_then(|bytes| {
            let end = self.at.checked_add(bytes)?;
            Some((self.file.get(self.at..end)?, end))
        });
        let Some((taken, end)) = taken else {
            return Err(self.error(GgufMistake::Ends {
                what,
                needed_bytes: bytes,
                left_bytes: self.left(),
            }));
        };
        self.at = end;
        Ok(taken)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, IngestError> {
        let bytes = self.take(what, 4)?;
        Ok(bytes.try_into().map_or(0, u32::from_le_bytes))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, IngestError> {
        let bytes = self.take(what, 8)?;
        Ok(bytes.try_into().map_or(0, u64::from_le_bytes))
    }

    /// Fails unless the rest of the file has room for `count` items of at least `bytes_min` each.
    pub(super) fn room(
        &self,
        count: u64,
        bytes_min: u64,
        what: &'static str,
    ) -> Result<(), IngestError> {
        let room = self.left().checked_div(bytes_min).unwrap_or(0);
        if count <= room {
            return Ok(());
        }
        let found = count;
        Err(self.error(GgufMistake::Count { what, found, room }))
    }

    pub(super) fn limit(
        &self,
        found: u64,
        limit: u64,
        what: &'static str,
    ) -> Result<(), IngestError> {
        if found <= limit {
            return Ok(());
        }
        Err(self.error(GgufMistake::TooMany { what, found, limit }))
    }

    fn string(&mut self, what: &'static str) -> Result<&'a [u8], IngestError> {
        let bytes = self.u64(what)?;
        self.take(what, bytes)
    }

    /// Reads a printable name of at most `bytes_max` bytes.
    pub(super) fn name(
        &mut self,
        what: &'static str,
        bytes_max: u64,
    ) -> Result<&'a str, IngestError> {
        let start = self.at;
        let name = self.string(what)?;
        if name.len() as u64 > bytes_max {
            let mistake = GgufMistake::TooMany {
                what: "bytes of a name",
                found: name.len() as u64,
                limit: bytes_max,
            };
            return Err(self.error_at(start, mistake));
        }
        std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.chars().any(char::is_control))
            .ok_or_else(|| self.error_at(start, GgufMistake::Name { what }))
    }

    fn kind(&mut self, key: &str) -> Result<Kind, IngestError> {
        let at = self.at;
        let found = self.u32("a value")?;
        let kind = usize::try_from(found).ok().and_then(|kind| KINDS.get(kind));
        kind.copied().ok_or_else(|| {
            let key = key.to_owned();
            self.error_at(at, GgufMistake::ValueType { key, found })
        })
    }

    pub(super) fn value(&mut self, key: &str) -> Result<Value<'a>, IngestError> {
        match self.kind(key)? {
            Kind::Text => Ok(Value::Text(self.string("a text")?)),
            Kind::Array => Ok(Value::Array(self.array(key)?)),
            kind => {
                let at = self.at;
                let bytes = self.take("a value", kind.bytes().unwrap_or(0) as u64)?;
                kind.number(bytes).ok_or_else(|| {
                    let key = key.to_owned();
                    let found = bytes.first().copied().unwrap_or(0);
                    self.error_at(at, GgufMistake::Truth { key, found })
                })
            }
        }
    }

    fn array(&mut self, key: &str) -> Result<Array<'a>, IngestError> {
        let at = self.at;
        let kind = self.kind(key)?;
        let count = self.u64("an array")?;
        let start = self.at;
        match (kind, kind.bytes()) {
            (Kind::Array, _) => {
                let key = key.to_owned();
                return Err(self.error_at(at, GgufMistake::Nested { key }));
            }
            (_, Some(width)) => {
                self.room(count, width as u64, "elements")?;
                self.take("an array", count.saturating_mul(width as u64))?;
            }
            (_, None) => {
                self.room(count, LENGTH_BYTES, "texts")?;
                for _ in 0..count {
                    self.string("a text")?;
                }
            }
        }
        Ok(Array {
            kind,
            // That many fit the file, so they fit a usize.
            count: usize::try_from(count).unwrap_or(0),
            bytes: self.file.get(start..self.at).unwrap_or_default(),
        })
    }
}

/// Size of a length field (format).
const LENGTH_BYTES: u64 = 8;
