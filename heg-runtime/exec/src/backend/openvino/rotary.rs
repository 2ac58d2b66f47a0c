//! Cosines and sines of a batch's positions: rows of the bundle's table where these are consecutive, else gathered into
//! buffers, where OpenVINO finds them at the same place each time.

use std::sync::Arc;

use heg_artifacts::manifest::RopeTable;
use heg_artifacts::{Bundle, SectionId};
use heg_openvino::{Tensor, TensorType};

use super::sections::Sections;
use crate::error::ExecError;
use crate::mem::{MemoryHome, RowBuffer};

/// Rotary rows of one lane.
pub(super) struct RotaryRows {
    bundle: Arc<Bundle>,
    sections: Sections,
    cos: RowBuffer,
    sin: RowBuffer,
}

impl RotaryRows {
    /// Rows for every table of the bundle, for calls of up to `rows` tokens: views of `sections`, or in `home`.
    pub(super) fn new(
        bundle: &Arc<Bundle>,
        sections: Sections,
        rows: usize,
        home: &MemoryHome,
    ) -> Result<Self, ExecError> {
        let widths = bundle
            .manifest()
            .rope
            .iter()
            .map(|table| table.width as usize);
        let width = widths.max().unwrap_or(1);
        Ok(Self {
            bundle: Arc::clone(bundle),
            sections,
            cos: RowBuffer::new(rows, width, TensorType::F32, home)?,
            sin: RowBuffer::new(rows, width, TensorType::F32, home)?,
        })
    }

    /// Cosines and sines at the positions of a call's tokens, as tensors of `rows` rows, of which only as many are set.
    pub(super) fn rows(
        &self,
        table: &RopeTable,
        positions: &[usize],
        rows: usize,
    ) -> Result<(Tensor, Tensor), ExecError> {
        if let [first, _, ..] = *positions
            && positions.iter().copied().eq(first..first + positions.len())
            && first + rows <= table.rows as usize
        {
            let width = table.width as usize;
            let view = |id| self.sections.rows(id, first..first + rows, width);
            return Ok((view(table.cos)?, view(table.sin)?));
        }
        Ok((
            self.gather(table, table.cos, &self.cos, positions, rows)?,
            self.gather(table, table.sin, &self.sin, positions, rows)?,
        ))
    }

    fn gather(
        &self,
        table: &RopeTable,
        id: SectionId,
        into: &RowBuffer,
        positions: &[usize],
        rows: usize,
    ) -> Result<Tensor, ExecError> {
        let bytes = self.bundle.section(id).map_err(ExecError::Section)?;
        let width = table.width as usize;
        let row_bytes = width * TensorType::F32.bytes();
        for (token, position) in positions.iter().enumerate() {
            let start = position * row_bytes;
            into.write_packed(token, &bytes[start..start + row_bytes])?;
        }
        into.view_packed(rows, width)
    }
}
