//! A bundle's sections on a device: imported where it reads pages of the host, else copied.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

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
        for section in &sections {
            bundle.section(*section).map_err(GpuError::bundle)?;
        }
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
    let whole = device.memory(bytes)?;
    let mut first = 0;
    for (id, section) in batch {
        whole.write(first, section)?;
        let size = (section.len() as u64).next_multiple_of(PAGE_BYTES);
        regions.insert(*id, whole.part(first, size)?);
        first += size;
    }
    Ok(())
}
