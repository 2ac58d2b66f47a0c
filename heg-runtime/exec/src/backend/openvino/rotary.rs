//! Cosines and sines of a batch's positions: rows of the bundle's table for a chunk of one sequence, else
//! gathered into buffers, where OpenVINO finds them at the same place each time.

use std::sync::Arc;

use heg_artifacts::manifest::RopeTable;
use heg_artifacts::{Bundle, SectionId};
use heg_openvino::{Tensor, TensorType};

use super::sections::Sections;
use crate::error::ExecError;
use crate::mem::{MemoryHome, RowBuffer};
use heg_sched::Span;

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

    /// Cosines and sines as tensors of `rows` rows; only the rows of the spans are set.
    pub(super) fn rows(
        &self,
        table: &RopeTable,
        spans: &[Span],
        rows: usize,
    ) -> Result<(Tensor, Tensor), ExecError> {
        if let [span] = spans
            && span.tokens > 1
            && span.position + rows <= table.rows as usize
        {
            let width = table.width as usize;
            let view = |id| {
                let rows = span.position..span.position + rows;
                self.sections.rows(id, rows, width)
            };
            return Ok((view(table.cos)?, view(table.sin)?));
        }
        Ok((
            self.gather(table, table.cos, &self.cos, spans, rows)?,
            self.gather(table, table.sin, &self.sin, spans, rows)?,
        ))
    }

    fn gather(
        &self,
        table: &RopeTable,
        id: SectionId,
        into: &RowBuffer,
        spans: &[Span],
        rows: usize,
    ) -> Result<Tensor, ExecError> {
        let bytes = self.bundle.section(id).map_err(ExecError::Section)?;
        let width = table.width as usize;
        let row_bytes = width * TensorType::F32.bytes();
        let first = spans.first().map_or(0, |span| span.row);
        for span in spans {
            for token in 0..span.tokens {
                let start = (span.position + token) * row_bytes;
                into.write_packed(span.row - first + token, &bytes[start..start + row_bytes])?;
            }
        }
        into.view_packed(rows, width)
    }
}
