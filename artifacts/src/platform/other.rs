//! Windows and others: files have no identity that the standard library can read, and there is no advice for pages.
//!
//! Without an identity nothing can be remembered about a file, so that its content is checked every time.

use std::fs::Metadata;
use std::io;
use std::ops::Range;

use memmap2::Mmap;

use crate::mapping::FileIdentity;

pub(crate) fn identity(_metadata: &Metadata) -> Option<FileIdentity> {
    None
}

pub(crate) fn will_read_in_order(_map: &Mmap) {}

pub(crate) fn will_need(_map: &Mmap, _range: Range<usize>) -> io::Result<()> {
    Ok(())
}

pub(crate) fn lock(_map: &Mmap) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn dont_need(_map: &Mmap, _range: Range<usize>) -> io::Result<()> {
    Ok(())
}
