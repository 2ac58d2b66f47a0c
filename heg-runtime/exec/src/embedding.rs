//! The token embedding: rows of the table, dequantised into the residual stream.

use std::sync::Arc;

use half::{bf16, f16};
use heg_artifacts::manifest::{ElementType, Weight};
use heg_artifacts::{Bundle, SectionId};

use crate::error::ExecError;
use crate::mem::RowBuffer;

/// Looks up token embeddings in the mapped bundle.
pub(super) struct EmbeddingTable {
    bundle: Arc<Bundle>,
    values: SectionId,
    scales: Option<SectionId>,
    centres: Option<SectionId>,
    element: ElementType,
    vocab: u32,
    width: usize,
    factor: f32,
    row: Vec<f32>,
    bytes: Vec<u8>,
}

impl EmbeddingTable {
    pub(super) fn new(bundle: &Arc<Bundle>, weight: &Weight, factor: f32) -> Self {
        Self {
            bundle: Arc::clone(bundle),
            values: weight.values,
            scales: weight.scales,
            centres: weight.centres,
            element: weight.element,
            vocab: weight.shape[0],
            width: weight.shape[1] as usize,
            factor,
            row: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Writes the embeddings of `tokens` to `hidden` from row `first` on.
    pub(super) fn gather(
        &mut self,
        tokens: &[u32],
        hidden: &RowBuffer,
        first: usize,
    ) -> Result<(), ExecError> {
        for (index, token) in tokens.iter().enumerate() {
            if *token >= self.vocab {
                return Err(ExecError::Token {
                    found: *token,
                    vocab: self.vocab,
                });
            }
            self.read(*token as usize)?;
            self.bytes.clear();
            match hidden.element() {
                heg_openvino::TensorType::F16 => {
                    self.bytes.extend(
                        self.row
                            .iter()
                            .flat_map(|x| f16::from_f32(*x).to_le_bytes()),
                    );
                }
                _ => self
                    .bytes
                    .extend(self.row.iter().flat_map(|x| x.to_le_bytes())),
            }
            hidden.write_row(first + index, &self.bytes)?;
        }
        Ok(())
    }

    /// Reads one row as f32, scaled.
    fn read(&mut self, token: usize) -> Result<(), ExecError> {
        // It was hashed while kernels were prepared; from then on this is a look-up.
        let table = self
            .bundle
            .section(self.values)
            .map_err(ExecError::Section)?;
        let row_bytes = self.width * self.element.bytes() as usize;
        let row = &table[token * row_bytes..(token + 1) * row_bytes];
        let of_row = |section: Option<SectionId>| match section {
            Some(section) => {
                let section = self.bundle.section(section).map_err(ExecError::Section)?;
                Ok::<_, ExecError>(Some(four(&section[4 * token..])))
            }
            None => Ok(None),
        };
        let factor = self.factor * of_row(self.scales)?.unwrap_or(1.0);
        let centre = self.factor * of_row(self.centres)?.unwrap_or(0.0);
        self.row.clear();
        match self.element {
            ElementType::I8 => self
                .row
                .extend(row.iter().map(|q| f32::from(*q as i8) * factor + centre)),
            ElementType::F16 => {
                let halves = row
                    .chunks_exact(2)
                    .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32());
                self.row.extend(halves.map(|x| x * factor));
            }
            ElementType::Bf16 => {
                let halves = row
                    .chunks_exact(2)
                    .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32());
                self.row.extend(halves.map(|x| x * factor));
            }
            // The manifest's check admits no other type for a table.
            ElementType::F32 | ElementType::I64 | ElementType::I4 | ElementType::U4 => {
                self.row
                    .extend(row.chunks_exact(4).map(|b| four(b) * factor));
            }
        }
        Ok(())
    }
}

/// The f32 in the first four of `bytes`.
fn four(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
