//! A bundle's sections on a device: imported where it reads pages of the host, else copied.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};

use heg_artifacts::{Bundle, SectionId};

use crate::device::{GpuDevice, Sharing};
use crate::error::GpuError;
use crate::region::GpuRegion;

/// Sections that a device reads.
pub struct GpuSections {
    regions: HashMap<SectionId, GpuRegion>,
    sharing: Sharing,
}

/// The unit of a mapping's pages.
const PAGE_BYTES: u64 = 4096;

/// Bytes of a memory that sections are copied to, unless one has more: every driver allocates as much at once.
const MEMORY_BYTES: u64 = 1 << 28;

impl GpuSections {
    /// Brings sections to a device, each after its hash was checked.
    ///
    /// # Errors
    ///
    /// [`GpuError::Bundle`] where a section is corrupt, and what the driver says of a copy.
    pub fn new(
        device: &GpuDevice,
        bundle: &Arc<Bundle>,
        sections: impl IntoIterator<Item = SectionId>,
    ) -> Result<Self, GpuError> {
        let sections: BTreeSet<SectionId> = sections.into_iter().collect();
        hash(bundle, &sections)?;
        if device.sharing() == Sharing::Imported
            && let Ok(regions) = imported(device, bundle, &sections)
        {
            return Ok(Self {
                regions,
                sharing: Sharing::Imported,
            });
        }
        Ok(Self {
            regions: copied(device, bundle, &sections)?,
            sharing: Sharing::Copied,
        })
    }

    /// Whether they were imported or copied.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// A section.
    ///
    /// # Errors
    ///
    /// [`GpuError::NoSection`] where it is none of those that were brought.
    pub fn section(&self, id: SectionId) -> Result<GpuRegion, GpuError> {
        self.regions
            .get(&id)
            .cloned()
            .ok_or(GpuError::NoSection { id })
    }
}

/// Hashes sections that nobody has hashed yet, by several threads.
fn hash(bundle: &Bundle, sections: &BTreeSet<SectionId>) -> Result<(), GpuError> {
    let sections: Vec<SectionId> = sections.iter().copied().collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(id) = sections.get(next.fetch_add(1, Ordering::Relaxed)) {
            bundle.section(*id).map_err(GpuError::bundle)?;
        }
        Ok(())
    };
    let threads = available_parallelism().map_or(1, NonZero::get);
    together((0..threads.min(THREADS_MAX)).map(|_| work))
}

/// Does parts of some work side by side, the first of them here.
fn together<W: FnOnce() -> Result<(), GpuError> + Send>(
    mut parts: impl Iterator<Item = W>,
) -> Result<(), GpuError> {
    thread::scope(|scope| {
        let own = parts.next();
        let others: Vec<_> = parts.map(|part| scope.spawn(part)).collect();
        let own = own.map_or(Ok(()), |part| part());
        others.into_iter().fold(own, |before, other| {
            before.and(other.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    })
}

#[allow(unsafe_code, reason = "the device reads the bundle's pages")]
fn imported(
    device: &GpuDevice,
    bundle: &Arc<Bundle>,
    sections: &BTreeSet<SectionId>,
) -> Result<HashMap<SectionId, GpuRegion>, GpuError> {
    let mapping: &[u8] = bundle.mapping();
    let bytes = (mapping.len() as u64).next_multiple_of(PAGE_BYTES);
    // SAFETY: a mapping starts at a page and has whole pages, which nobody writes; the bundle keeps it.
    let whole = unsafe { device.import(mapping.as_ptr(), bytes, Arc::clone(bundle) as _) }?;
    let region = |id: &SectionId| {
        let range = bundle.section_range(*id).map_err(GpuError::bundle)?;
        // To the end of its page, as modules read words.
        let end = range.end.next_multiple_of(PAGE_BYTES).min(bytes);
        Ok((*id, whole.part(range.start, end - range.start)?))
    };
    sections.iter().map(region).collect()
}

fn copied(
    device: &GpuDevice,
    bundle: &Bundle,
    sections: &BTreeSet<SectionId>,
) -> Result<HashMap<SectionId, GpuRegion>, GpuError> {
    let mut regions = HashMap::new();
    let mut batch: Vec<(SectionId, &[u8])> = Vec::new();
    let mut batch_bytes = 0;
    for id in sections {
        let bytes = bundle.section(*id).map_err(GpuError::bundle)?;
        let size = (bytes.len() as u64).next_multiple_of(PAGE_BYTES);
        if batch_bytes > 0 && batch_bytes + size > MEMORY_BYTES {
            copy(device, &batch, batch_bytes, &mut regions)?;
            (batch, batch_bytes) = (Vec::new(), 0);
        }
        batch.push((*id, bytes));
        batch_bytes += size;
    }
    copy(device, &batch, batch_bytes, &mut regions)?;
    Ok(regions)
}

fn copy(
    device: &GpuDevice,
    batch: &[(SectionId, &[u8])],
    bytes: u64,
    regions: &mut HashMap<SectionId, GpuRegion>,
) -> Result<(), GpuError> {
    let mut upload = Upload::new(device, bytes)?;
    let mut first = 0;
    for (id, section) in batch {
        upload.write(first, section)?;
        let size = (section.len() as u64).next_multiple_of(PAGE_BYTES);
        regions.insert(*id, upload.whole.part(first, size)?);
        first += size;
    }
    upload.flush()
}

/// A memory that is written from its start to its end: by way of another, that the host reaches, unless it does.
struct Upload {
    whole: GpuRegion,
    staging: Option<GpuRegion>,
    /// Destination and number of the bytes that wait in the staging memory.
    start: u64,
    waiting: u64,
}

/// Size of staging memory. Chosen: a copy takes ten times as long as its submission.
const STAGING_BYTES: u64 = 16 << 20;

impl Upload {
    fn new(device: &GpuDevice, bytes: u64) -> Result<Self, GpuError> {
        let whole = device.memory(bytes)?;
        let staging = match whole.memory().is_mapped() {
            true => None,
            false => Some(device.host_memory(bytes.min(STAGING_BYTES))?),
        };
        Ok(Self {
            whole,
            staging,
            start: 0,
            waiting: 0,
        })
    }

    /// Writes bytes behind those before.
    fn write(&mut self, mut first: u64, mut bytes: &[u8]) -> Result<(), GpuError> {
        let Some(staging) = self.staging.clone() else {
            return fill(&self.whole, first, bytes);
        };
        while !bytes.is_empty() {
            let at = first - self.start;
            let room = staging.bytes().saturating_sub(at).min(bytes.len() as u64);
            if room == 0 {
                self.flush()?;
                self.start = first;
                continue;
            }
            let (part, rest) = bytes.split_at(room as usize);
            fill(&staging, at, part)?;
            (self.waiting, bytes, first) = (at + room, rest, first + room);
        }
        Ok(())
    }

    /// Brings what waits to its place.
    fn flush(&mut self) -> Result<(), GpuError> {
        if let Some(staging) = self.staging.as_ref().filter(|_| self.waiting > 0) {
            self.whole.copy_from(self.start, staging, self.waiting)?;
        }
        self.waiting = 0;
        Ok(())
    }
}

/// Bytes that are worth a thread of their own. Chosen: a thread starts in a twentieth of the time that they take.
const THREAD_BYTES: usize = 1 << 20;

/// Threads that fill a memory at once. Chosen: no host that was measured copies faster with more.
const THREADS_MAX: usize = 8;

/// Writes bytes of a mapped file to memory that the host reaches. Several threads do it, for most of the time goes into
/// the pages of the file, which each thread brings to the process by itself.
fn fill(to: &GpuRegion, first: u64, bytes: &[u8]) -> Result<(), GpuError> {
    let cores = available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(THREADS_MAX).min(bytes.len() / THREAD_BYTES);
    if threads < 2 || !to.memory().is_mapped() {
        return to.write(first, bytes);
    }
    let size = bytes.len().div_ceil(threads);
    let parts = bytes.chunks(size).enumerate();
    together(parts.map(|(index, part)| move || to.write(first + (index * size) as u64, part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{GpuOptions, Treatment};

    #[test]
    fn memory_apart_from_the_hosts_is_written_piece_by_piece() {
        let options = GpuOptions {
            treatment: Treatment::Discrete,
            ..GpuOptions::from_environment()
        };
        // The tests in `tests` say where there is no device.
        let Ok(device) = GpuDevice::open(&options) else {
            return;
        };
        let bytes = 2 * STAGING_BYTES + 12345;
        let content: Vec<u8> = (0..bytes).map(|at| ((at * 31) >> 7) as u8).collect();
        let mut upload = Upload::new(&device, bytes).unwrap();
        let cuts = [
            0,
            5000,
            8192,
            STAGING_BYTES - 8,
            STAGING_BYTES + 4096,
            bytes,
        ];
        for pair in cuts.windows(2) {
            let part = &content[pair[0] as usize..pair[1] as usize];
            upload.write(pair[0], part).unwrap();
        }
        upload.flush().unwrap();
        let mut found = vec![0; content.len()];
        upload.whole.read(0, &mut found).unwrap();
        assert!(found == content);
    }
}
