//! The token embedding: rows of the table, dequantised into the residual stream, and learned rows that are added to them.

use std::sync::Arc;

use half::{bf16, f16};
use heg_artifacts::manifest::{ElementType, Embedding, WeightId};
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
    /// The first row of token types, if there are any.
    token_type: Option<SectionId>,
    /// Rows of positions, if there are any.
    positions: Option<(SectionId, usize)>,
    row: Vec<f32>,
    bytes: Vec<u8>,
}

impl EmbeddingTable {
    pub(super) fn new(bundle: &Arc<Bundle>) -> Self {
        let manifest = bundle.manifest();
        let Embedding {
            table,
            scale,
            positions,
            token_types,
        } = manifest.embedding;
        let weight_of = |id: WeightId| &manifest.weights[id.0 as usize];
        let weight = weight_of(table);
        let positions = positions.map(weight_of);
        Self {
            bundle: Arc::clone(bundle),
            values: weight.values,
            scales: weight.scales,
            centres: weight.centres,
            element: weight.element,
            vocab: weight.shape[0],
            width: weight.shape[1] as usize,
            factor: scale,
            token_type: token_types.map(|id| weight_of(id).values),
            positions: positions.map(|table| (table.values, table.shape[0] as usize)),
            row: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Writes the embeddings of `tokens`, which stand at `position` and behind it, to `hidden` from row `first` on.
    pub(super) fn gather(
        &mut self,
        (tokens, position): (&[u32], usize),
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
            self.add_learned(position + index)?;
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

    /// Adds the rows of the token type and of a position to the row that was read, in this order.
    fn add_learned(&mut self, position: usize) -> Result<(), ExecError> {
        if let Some(table) = self.token_type {
            self.add_row(table, 0)?;
        }
        if let Some((table, rows)) = self.positions {
            if position >= rows {
                let asked = position + 1;
                return Err(ExecError::Context {
                    asked,
                    context: rows,
                });
            }
            self.add_row(table, position)?;
        }
        Ok(())
    }

    fn add_row(&mut self, table: SectionId, row: usize) -> Result<(), ExecError> {
        // The manifest's check admits tables of f32 rows alone.
        let table = self.bundle.section(table).map_err(ExecError::Section)?;
        let row_bytes = self.width * size_of::<f32>();
        let added = table[row * row_bytes..].chunks_exact(size_of::<f32>());
        for (sum, added) in self.row.iter_mut().zip(added) {
            *sum += four(added);
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
