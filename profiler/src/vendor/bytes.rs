//! Reads foreign bytes from front to back; every read is checked against the remaining length.

use super::error::BlobError;

/// The unread rest of one part of a blob.
#[derive(Debug, Clone)]
pub(super) struct Bytes<'a> {
    left: &'a [u8],
    /// The part's name, for errors.
    part: &'static str,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(part: &'static str, left: &'a [u8]) -> Self {
        Bytes { left, part }
    }

    /// Returns the next `count` bytes; refuses with [`BlobError::Truncated`], without reading, if there are fewer.
    pub(super) fn take(&mut self, count: u64) -> Result<&'a [u8], BlobError> {
        let split = usize::try_from(count)
            .ok()
            .and_then(|count| self.left.split_at_checked(count));
        let (taken, left) = split.ok_or_else(|| self.truncated(count))?;
        self.left = left;
        Ok(taken)
    }

    /// Returns all remaining bytes.
    pub(super) fn rest(self) -> &'a [u8] {
        self.left
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BlobError> {
        let (taken, left) = self
            .left
            .split_first_chunk()
            .ok_or_else(|| self.truncated(N as u64))?;
        self.left = left;
        Ok(*taken)
    }

    fn truncated(&self, expected: u64) -> BlobError {
        BlobError::Truncated {
            part: self.part,
            expected,
            found: self.left.len() as u64,
        }
    }

    pub(super) fn u8(&mut self) -> Result<u8, BlobError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, BlobError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, BlobError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, BlobError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn f32(&mut self) -> Result<f32, BlobError> {
        Ok(f32::from_le_bytes(self.array()?))
    }
}
