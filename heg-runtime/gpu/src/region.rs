//! Bytes of a device's memory, as callers hold them.

use std::any::Any;
use std::sync::Arc;

use crate::error::GpuError;
use crate::vulkan::{Memory, copy};

/// A run of bytes in a memory of the device, which lives as long as anybody holds any of it.
#[derive(Clone)]
pub struct GpuRegion {
    memory: Arc<Memory>,
    first: u64,
    bytes: u64,
}

impl GpuRegion {
    pub(crate) fn whole(memory: Arc<Memory>) -> Self {
        let bytes = memory.bytes();
        Self {
            memory,
            first: 0,
            bytes,
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part of it, which begins at a multiple of four.
    ///
    /// # Errors
    ///
    /// [`GpuError::Range`] where the part is not within it.
    pub fn part(&self, first: u64, bytes: u64) -> Result<Self, GpuError> {
        let end = first.checked_add(bytes);
        match end.filter(|end| *end <= self.bytes && first.is_multiple_of(4)) {
            Some(_) => Ok(Self {
                memory: Arc::clone(&self.memory),
                first: self.first + first,
                bytes,
            }),
            None => Err(GpuError::Range {
                first,
                end: first.saturating_add(bytes),
                bytes: self.bytes,
            }),
        }
    }

    /// Writes bytes from the host. No work that uses them may be under way.
    ///
    /// # Errors
    ///
    /// [`GpuError::Range`], and what the driver says of a copy.
    pub fn write(&self, first: u64, bytes: &[u8]) -> Result<(), GpuError> {
        let part = self.part_of_any_start(first, bytes.len())?;
        self.memory.write(part, bytes)
    }

    /// Reads bytes to the host. No work that writes them may be under way.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn read(&self, first: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        let part = self.part_of_any_start(first, bytes.len())?;
        self.memory.read(part, bytes)
    }

    /// Copies the first bytes of another region here, within the device. No work that uses either may be under way.
    pub(crate) fn copy_from(&self, first: u64, from: &Self, bytes: u64) -> Result<(), GpuError> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (to, start) = (
            self.part_of_any_start(first, size)?,
            from.part_of_any_start(0, size)?,
        );
        copy(&from.memory, start, &self.memory, to, bytes)
    }

    /// Place of the part in the memory.
    pub(crate) fn part_of_any_start(&self, first: u64, bytes: usize) -> Result<u64, GpuError> {
        let end = first.saturating_add(bytes as u64);
        match end <= self.bytes {
            true => Ok(self.first + first),
            false => Err(GpuError::Range {
                first,
                end,
                bytes: self.bytes,
            }),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.address() + self.first
    }

    pub(crate) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }
}

/// Whatever keeps imported pages mapped.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;
