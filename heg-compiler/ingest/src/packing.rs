//! Packed tensors: rows that are not stored as plain numbers in order.
//!
//! A GGUF file stores numbers in blocks, the rows of q and k in another order, and the weights of Gemma's norms plus 1.
//! All of this is undone row by row, while a tensor streams: whole tensors are never unpacked.

use std::ops::Range;

use super::gguf::{BlockFormat, RowFormat};
use super::tensor::SourceTensor;

/// Storage of a tensor's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Format of the stored numbers.
    pub format: RowFormat,
    /// Order of the stored rows.
    pub order: RowOrder,
    /// Difference from the model's numbers.
    pub shift: Shift,
}

/// Order of the stored rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The model's order.
    AsStored,
    /// In each head of `head_rows` rows, row j of the first half and row j of the second are neighbours.
    Neighbours {
        /// Number of rows of a head.
        head_rows: usize,
    },
}

/// The difference between the stored numbers and the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// None.
    None,
    /// 1, which the norm adds itself. Subtracted in f32; adding it again gives the stored number, since that is a
    /// rounded sum with 1.
    One,
}

impl RowOrder {
    /// The index of the stored row that is row `row` of the model.
    fn stored(self, row: usize) -> usize {
        match self {
            Self::AsStored => row,
            Self::Neighbours { head_rows } => {
                let (within, half) = (row % head_rows, head_rows / 2);
                row - within + within % half * 2 + within / half
            }
        }
    }
}

impl<'a> SourceTensor<'a> {
    /// The storage of the rows, if they have to be unpacked.
    pub fn packing(&self) -> Option<Packing> {
        self.packing
    }

    /// The format of its blocks, if its numbers are stored in blocks and otherwise unchanged.
    pub fn block_format(&self) -> Option<BlockFormat> {
        match self.packing? {
            Packing {
                format: RowFormat::Blocks(format),
                shift: Shift::None,
                ..
            } => Some(format),
            _ => None,
        }
    }

    /// Number of bytes of one stored row.
    pub(super) fn row_bytes(&self) -> usize {
        let elements = self.row_elements();
        match self.packing {
            None => elements.saturating_mul(self.dtype().element_bytes()),
            Some(Packing { format, .. }) => {
                (elements / format.block_elements()).saturating_mul(format.block_bytes())
            }
        }
    }

    /// Number of bytes of all stored rows.
    pub fn stored_bytes(&self) -> u64 {
        (self.row_bytes() as u64).saturating_mul(self.row_count() as u64)
    }

    /// The conversion from stored bytes to numbers, as a text: together with the bytes' hash and the shape it
    /// identifies the numbers.
    pub fn format_name(&self) -> String {
        match self.packing {
            Some(Packing {
                format: RowFormat::Blocks(format),
                shift,
                ..
            }) => format!("{format} {shift:?}"),
            Some(Packing {
                format: RowFormat::Plain(dtype),
                shift: Shift::One,
                ..
            }) => format!("{dtype:?} One"),
            Some(Packing {
                format: RowFormat::Plain(dtype),
                shift: Shift::None,
                ..
            }) => format!("{dtype:?}"),
            None => format!("{:?}", self.dtype()),
        }
    }

    /// Calls `take` with the stored bytes of rows of this view, in the model's order.
    pub fn stored_rows(&self, rows: Range<usize>, mut take: impl FnMut(&'a [u8])) {
        let row_bytes = self.row_bytes();
        let whole = self.bytes();
        let slice = |first: usize, count: usize| {
            let start = first.saturating_mul(row_bytes);
            let end = start.saturating_add(count.saturating_mul(row_bytes));
            whole.get(start..end).unwrap_or_default()
        };
        let first = self.first_row();
        match self.packing.map(|packing| packing.order) {
            None | Some(RowOrder::AsStored) => {
                take(slice(rows.start.saturating_add(first), rows.len()));
            }
            Some(order) => {
                for row in rows {
                    take(slice(order.stored(row.saturating_add(first)), 1));
                }
            }
        }
    }

    /// Unpacks rows of this view into `out`: little-endian f32, one after the other.
    pub fn unpack_rows(&self, rows: Range<usize>, out: &mut Vec<u8>) {
        let Some(packing) = self.packing else {
            return;
        };
        let bytes = rows
            .len()
            .saturating_mul(self.row_elements())
            .saturating_mul(size_of::<f32>());
        out.resize(bytes, 0);
        let mut rest = out.as_mut_slice();
        let ratio = (
            packing.format.block_elements(),
            packing.format.block_bytes(),
        );
        self.stored_rows(rows, |stored| {
            let taken = (stored.len() / ratio.1).saturating_mul(ratio.0 * size_of::<f32>());
            let (now, later) = std::mem::take(&mut rest)
                .split_at_mut_checked(taken)
                .unwrap_or_default();
            packing.format.decode(stored, now);
            rest = later;
        });
        if packing.shift == Shift::One {
            for raw in out.as_chunks_mut::<4>().0 {
                *raw = (f32::from_le_bytes(*raw) - 1.0).to_le_bytes();
            }
        }
    }

    /// Gives back the source pages of rows of this view, except those that may be read again.
    pub fn advise_rows_done(&self, rows: Range<usize>) {
        let row_bytes = self.row_bytes();
        let of = |row: usize| {
            row.saturating_add(self.first_row())
                .saturating_mul(row_bytes)
        };
        match self.packing.map(|packing| packing.order) {
            None | Some(RowOrder::AsStored) => self.advise_done(of(rows.start)..of(rows.end)),
            // Heads are in order, so that everything before the last row's head is done.
            Some(RowOrder::Neighbours { head_rows }) => {
                let back = |row: usize| (row / head_rows.max(1)).saturating_mul(head_rows);
                let end = back(rows.end.saturating_add(self.first_row()));
                let start = back(rows.start.saturating_add(self.first_row()));
                self.advise_done(start.saturating_mul(row_bytes)..end.saturating_mul(row_bytes));
            }
        }
    }

    /// The row of `bytes` at which this view begins.
    fn first_row(&self) -> usize {
        match self.packing {
            None => 0,
            Some(_) => self.row_start(),
        }
    }
}
