//! Where forms find the sections they are made of: in the mapped bundle, or in a copy that was verified anew.
//!
//! Every section is hashed before its first use. A copy is for a kernel that answers wrongly although its sections
//! were right once: it tells damaged memory from a device that computes something else.

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_artifacts::{Bundle, SectionId};
use heg_openvino::{ElementType, HostBuffer, Memory, Tensor};

use crate::error::{RuntimeError, openvino};

/// Sections as memory.
#[derive(Clone)]
pub(super) struct Sections {
    bundle: Arc<Bundle>,
    memory: Arc<dyn Memory>,
    /// Where sections are in `memory`, if not where they are in the bundle.
    copied: Option<BTreeMap<SectionId, u64>>,
}

impl Sections {
    /// All sections, in memory laid out like the bundle's file.
    pub(super) fn mapped(bundle: Arc<Bundle>, memory: Arc<dyn Memory>) -> Self {
        Self {
            bundle,
            memory,
            copied: None,
        }
    }

    /// A copy of some sections, hashed as they are copied.
    pub(super) fn copied(bundle: &Arc<Bundle>, ids: &[SectionId]) -> Result<Self, RuntimeError> {
        let mut places = BTreeMap::new();
        let mut end = 0;
        let mut found: Vec<(usize, &[u8])> = Vec::new();
        for id in ids {
            let bytes = bundle
                .section_unverified(*id)
                .map_err(RuntimeError::Section)?;
            if SectionId::of(bytes) != *id {
                let part = bundle.label(*id);
                return Err(RuntimeError::ChangedInMemory { part });
            }
            if places.insert(*id, end as u64).is_none() {
                found.push((end, bytes));
                end = (end + bytes.len()).next_multiple_of(PAGE_BYTES);
            }
        }
        let buffer = HostBuffer::new(end).map_err(openvino("copy of sections"))?;
        for (start, bytes) in found {
            buffer
                .write(start, bytes)
                .map_err(openvino("copy of sections"))?;
        }
        Ok(Self {
            bundle: Arc::clone(bundle),
            memory: Arc::new(buffer),
            copied: Some(places),
        })
    }

    /// Whether this is a copy of its own.
    pub(super) fn is_copy(&self) -> bool {
        self.copied.is_some()
    }

    /// Where a section begins, after its hash was checked.
    pub(super) fn offset(&self, id: SectionId) -> Result<u64, RuntimeError> {
        if let Some(start) = self.copied.as_ref().and_then(|copied| copied.get(&id)) {
            return Ok(*start);
        }
        self.bundle.section(id).map_err(RuntimeError::Section)?;
        let range = self
            .bundle
            .section_range(id)
            .map_err(RuntimeError::Section)?;
        Ok(range.start)
    }

    /// A section as a tensor.
    pub(super) fn tensor(
        &self,
        id: SectionId,
        element: ElementType,
        shape: &[usize],
    ) -> Result<Tensor, RuntimeError> {
        let start = self.offset(id)? as usize;
        Tensor::new(Arc::clone(&self.memory), start, element, shape)
            .map_err(openvino(format!("view of {}", self.bundle.label(id))))
    }

    /// A section as bytes.
    pub(super) fn bytes(&self, id: SectionId) -> Result<Tensor, RuntimeError> {
        let length = self
            .bundle
            .section_range(id)
            .map_err(RuntimeError::Section)?;
        let length = (length.end - length.start) as usize;
        self.tensor(id, ElementType::U8, &[length])
    }

    /// All of the memory, for IRs whose constants are offsets into it.
    pub(super) fn whole(&self) -> Result<Tensor, RuntimeError> {
        let length = self.memory.len();
        Tensor::new(Arc::clone(&self.memory), 0, ElementType::U8, &[length])
            .map_err(openvino("view of the bundle"))
    }
}

const PAGE_BYTES: usize = 4096;
