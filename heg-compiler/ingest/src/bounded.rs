//! Reads small foreign files: bounds are checked before memory is allocated.
//!
//! Every text file of a source folder is read here. The length is checked before a byte is read and again while
//! reading, since a file may grow in between; pipes, devices and directories are refused, because opening a pipe would
//! wait for ever. Weight files are mapped, not read: see `mapping.rs`.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::Value;

use super::error::IngestError;

/// Reads a regular file of at most `limit_bytes`.
pub(super) fn read(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, IngestError> {
    let (file, found_bytes) = open(path)?;
    let too_large = |found_bytes| IngestError::TooLarge {
        path: path.to_owned(),
        found_bytes,
        limit_bytes,
    };
    if found_bytes > limit_bytes {
        return Err(too_large(found_bytes));
    }
    let mut content = Vec::new();
    let read = file
        .take(limit_bytes.saturating_add(1))
        .read_to_end(&mut content);
    read.map_err(|source| IngestError::Read {
        path: path.to_owned(),
        source,
    })?;
    match content.len() as u64 {
        grown if grown > limit_bytes => Err(too_large(grown)),
        _ => Ok(content),
    }
}

/// As [`read`], with `None` for an absent file. A dangling link is absent too.
pub(super) fn read_optional(path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, IngestError> {
    match read(path, limit_bytes) {
        Ok(content) => Ok(Some(content)),
        Err(IngestError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a regular file; returns it with its length in bytes.
pub(super) fn open(path: &Path) -> Result<(File, u64), IngestError> {
    let read = |source| IngestError::Read {
        path: path.to_owned(),
        source,
    };
    let not_a_file = || IngestError::NotAFile {
        path: path.to_owned(),
    };
    // Inspected before opening, because of pipes, and after, because it may have been replaced.
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(not_a_file());
    }
    let file = File::open(path).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(not_a_file());
    }
    Ok((file, metadata.len()))
}

/// Parses bytes as JSON; an error has the place of the first mistake.
pub(super) fn json(path: &Path, content: &[u8]) -> Result<Value, IngestError> {
    serde_json::from_slice(content).map_err(|error| json_error(path, &error))
}

/// Converts bytes to text.
pub(super) fn text(path: &Path, content: Vec<u8>) -> Result<String, IngestError> {
    String::from_utf8(content).map_err(|error| IngestError::NotUtf8 {
        path: path.to_owned(),
        valid_bytes: error.utf8_error().valid_up_to(),
    })
}

/// Converts serde_json's error, without repeating its place in the message.
pub(super) fn json_error(path: &Path, error: &serde_json::Error) -> IngestError {
    let (line, column) = (error.line(), error.column());
    let mut message = error.to_string();
    let place = format!(" at line {line} column {column}");
    if message.ends_with(&place) {
        message.truncate(message.len().saturating_sub(place.len()));
    }
    IngestError::Config {
        path: path.to_owned(),
        line,
        column,
        message,
    }
}
