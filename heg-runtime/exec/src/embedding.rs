//! The token embedding: rows of the table, dequantised into the residual stream, and learned rows that are added to them.

use std::sync::Arc;

use half::{bf16, f16};
use heg_artifacts::manifest::{ElementType, Embedding, WeightId};
use heg_artifacts::{Bundle, SectionId};

use crate::error::ExecError;
use crate::mem::RowBuffer;

/// Tokens to embed, which follow each other in a text.
#[derive(Debug, Clone, Copy)]
pub struct TokenRun<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub position: usize,
    /// Position at which the second text of a pair begins, if they are of a pair.
    pub second_at: Option<usize>,
}

impl<'a> TokenRun<'a> {
    /// Tokens of a single text.
    pub fn new(tokens: &'a [u32], position: usize) -> Self {
        Self {
            tokens,
            position,
            second_at: None,
        }
    }
}

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
    /// Rows of token types, if there are any.
    token_types: Option<(SectionId, usize)>,
    /// Rows of positions, if there are any.
    positions: Option<(SectionId, usize)>,
    row: Vec<f32>,
    /// A row of f16.
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
        let rows_of = |id: WeightId| (weight_of(id).values, weight_of(id).shape[0] as usize);
        Self {
            bundle: Arc::clone(bundle),
            values: weight.values,
            scales: weight.scales,
            centres: weight.centres,
            element: weight.element,
            vocab: weight.shape[0],
            width: weight.shape[1] as usize,
            factor: scale,
            token_types: token_types.map(rows_of),
            positions: positions.map(rows_of),
            row: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Writes the embeddings of tokens to `hidden` from row `first` on.
    pub(super) fn gather(
        &mut self,
        run: TokenRun<'_>,
        hidden: &RowBuffer,
        first: usize,
    ) -> Result<(), ExecError> {
        for (index, token) in run.tokens.iter().enumerate() {
            if *token >= self.vocab {
                return Err(ExecError::Token {
                    found: *token,
                    vocab: self.vocab,
                });
            }
            self.read(*token as usize)?;
            let position = run.position + index;
            let is_second = run.second_at.is_some_and(|second| position >= second);
            self.add_learned(position, usize::from(is_second))?;
            match hidden.element() {
                heg_openvino::TensorType::F16 => {
                    let halves = self.row.iter();
                    let halves = halves.flat_map(|x| f16::from_f32(*x).to_le_bytes());
                    self.bytes.clear();
                    self.bytes.extend(halves);
                    hidden.write_row(first + index, &self.bytes)?;
                }
                _ => hidden.write_row_f32(first + index, &self.row)?,
            }
        }
        Ok(())
    }

    /// Adds the rows of a token type and of a position to the row that was read, in this order.
    fn add_learned(&mut self, position: usize, token_type: usize) -> Result<(), ExecError> {
        if let Some((table, rows)) = self.token_types {
            // A model without a type for second texts takes them for first ones.
            self.add_row(table, token_type.min(rows - 1))?;
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
        let (added, _) = table[row * row_bytes..].as_chunks();
        for (sum, added) in self.row.iter_mut().zip(added) {
            *sum += f32::from_le_bytes(*added);
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
                let (floats, _) = row.as_chunks();
                self.row
                    .extend(floats.iter().map(|x| f32::from_le_bytes(*x) * factor));
            }
        }
        Ok(())
    }
}

/// The f32 in the first four of `bytes`.
fn four(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
