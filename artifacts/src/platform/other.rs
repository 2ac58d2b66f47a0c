//! Windows and others: files have no identity that the standard library can read, and there is no advice for pages.
//!
//! Without an identity nothing can be remembered about a file, so that its content is checked every time.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;

use crate::mapping::{FileIdentity, Pages};

pub(crate) fn identity(_metadata: &Metadata) -> Option<FileIdentity> {
    None
}

/// Files mapped side by side, which this system has no means for.
#[derive(Debug)]
pub(crate) enum MappedParts {}

impl MappedParts {
    pub(crate) fn map(_parts: &[(&File, u64)]) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match *self {}
    }
}

/// Unknown, and not needed.
pub(crate) fn page_bytes() -> Option<u64> {
    None
}

pub(crate) fn will_read_in_order(_map: &Pages) {}

pub(crate) fn will_need(_map: &Pages, _range: Range<usize>) -> io::Result<()> {
    Ok(())
}

pub(crate) fn lock(_map: &Pages) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn dont_need(_map: &Pages, _range: Range<usize>) -> io::Result<()> {
    Ok(())
}
