//! The sections that forms are made from: in the mapped bundle, or in a copy that was hashed again.
//!
//! Every section is hashed before its first use. A copy serves a kernel that fails its known-answer test although its
//! sections were intact once: it tells damaged memory from a device that computes something else.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use heg_artifacts::{Bundle, SectionId};
use heg_openvino::{Memory, Tensor, TensorType};

use super::ir::Extent;
use super::lending::{SectionPlace, WeightCopy};
use crate::error::{ExecError, openvino};
use crate::mem::MemoryHome;

/// Sections as memory.
#[derive(Clone)]
pub(super) struct Sections {
    bundle: Arc<Bundle>,
    memory: Arc<dyn Memory>,
    /// Offsets of sections in `memory`, if they differ from those in the bundle.
    copied: Option<BTreeMap<SectionId, u64>>,
    /// The copy of some sections that a device's kernels bind instead.
    known: Option<Arc<WeightCopy>>,
}

impl Sections {
    /// All sections, in memory laid out like the bundle's file.
    pub(super) fn mapped(bundle: Arc<Bundle>, memory: Arc<dyn Memory>) -> Self {
        Self {
            bundle,
            memory,
            copied: None,
            known: None,
        }
    }

    /// The same sections, as tensors in a device's copy where that has them.
    pub(super) fn known_as(&self, copy: Option<&Arc<WeightCopy>>) -> Self {
        Self {
            known: copy.cloned(),
            ..self.clone()
        }
    }

    /// The memory in which sections are.
    pub(super) fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// Copies some sections to `home` and hashes the copies.
    pub(super) fn copied(
        bundle: &Arc<Bundle>,
        ids: &[SectionId],
        home: &MemoryHome,
    ) -> Result<Self, ExecError> {
        let mut places = BTreeMap::new();
        let mut end: u64 = 0;
        for id in ids {
            let range = bundle.section_range(*id).map_err(ExecError::Section)?;
            if !places.contains_key(id) {
                places.insert(*id, end);
                end = (end + (range.end - range.start)).next_multiple_of(PAGE_BYTES);
            }
        }
        let buffer = home
            .buffer(end as usize)
            .map_err(openvino("copy of sections"))?;
        for (id, start) in &places {
            let bytes = bundle.section_copy(*id).map_err(|error| match error {
                heg_artifacts::Error::Corrupt { .. } => ExecError::ChangedInMemory {
                    part: bundle.label(*id),
                },
                error => ExecError::Section(error),
            })?;
            buffer
                .write(*start as usize, &bytes)
                .map_err(openvino("copy of sections"))?;
        }
        Ok(Self {
            bundle: Arc::clone(bundle),
            memory: Arc::new(buffer),
            copied: Some(places),
            known: None,
        })
    }

    /// Whether this is a copy.
    pub(super) fn is_copy(&self) -> bool {
        self.copied.is_some()
    }

    /// Offset of a section, after its hash was checked.
    pub(super) fn offset(&self, id: SectionId) -> Result<u64, ExecError> {
        if let Some(start) = self.copied.as_ref().and_then(|copied| copied.get(&id)) {
            return Ok(*start);
        }
        self.bundle.section(id).map_err(ExecError::Section)?;
        let range = self.bundle.section_range(id).map_err(ExecError::Section)?;
        Ok(range.start)
    }

    /// Extent of a section, after its hash was checked.
    pub(super) fn extent(&self, id: SectionId) -> Result<Extent, ExecError> {
        let range = self.bundle.section_range(id).map_err(ExecError::Section)?;
        Ok(Extent {
            start: self.offset(id)?,
            bytes: range.end - range.start,
        })
    }

    /// A section as a tensor.
    pub(super) fn tensor(
        &self,
        id: SectionId,
        element: TensorType,
        shape: &[usize],
    ) -> Result<Tensor, ExecError> {
        self.view(id, 0, element, shape)
    }

    /// Rows of a section that is a table of `width` numbers of f32 a row, as a tensor.
    pub(super) fn rows(
        &self,
        id: SectionId,
        rows: Range<usize>,
        width: usize,
    ) -> Result<Tensor, ExecError> {
        let first_byte = rows.start * width * TensorType::F32.bytes();
        self.view(id, first_byte, TensorType::F32, &[rows.len(), width])
    }

    /// Elements of a section from a byte on, as a tensor.
    pub(super) fn view(
        &self,
        id: SectionId,
        first_byte: usize,
        element: TensorType,
        shape: &[usize],
    ) -> Result<Tensor, ExecError> {
        let (memory, start) = self.place(id)?;
        // Launches make views, so the label, for which the manifest is searched, is made for an error alone.
        Tensor::new(memory, start as usize + first_byte, element, shape)
            .map_err(|error| openvino(format!("view of {}", self.bundle.label(id)))(error))
    }

    /// The memory that a tensor of a section is a view of, and the section's offset there, after its hash was checked.
    fn place(&self, id: SectionId) -> Result<SectionPlace, ExecError> {
        if let Some(known) = &self.known
            && let Some(place) = known.section(&self.bundle, id)?
        {
            return Ok(place);
        }
        Ok((Arc::clone(&self.memory), self.offset(id)?))
    }

    /// A section as bytes.
    pub(super) fn bytes(&self, id: SectionId) -> Result<Tensor, ExecError> {
        let length = self.bundle.section_range(id).map_err(ExecError::Section)?;
        let length = (length.end - length.start) as usize;
        self.tensor(id, TensorType::U8, &[length])
    }

    /// All of the memory, for IRs whose constants are offsets into it.
    pub(super) fn whole(&self) -> Result<Tensor, ExecError> {
        let length = self.memory.len();
        Tensor::new(Arc::clone(&self.memory), 0, TensorType::U8, &[length])
            .map_err(openvino("view of the bundle"))
    }
}

const PAGE_BYTES: u64 = 4096;
