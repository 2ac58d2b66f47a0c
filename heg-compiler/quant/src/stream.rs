//! Encodes a whole tensor, block by block, into a sink.
//!
//! A tensor may be larger than memory: it is read through its map in windows of a few blocks of about 4 MiB. The blocks
//! of a window are encoded in parallel and written in order; the hash of the source is computed in the same pass, and
//! the pages already read are given back. The output depends on the source alone: neither on the number of threads nor
//! on the size of blocks.

use std::io::Write;
use std::ops::Range;

use rayon::prelude::*;

use heg_ingest::{BlockFormat, SourceTensor};

use super::element::fault;
use super::error::QuantError;
use super::floats::{f16_part, f32_part};
use super::form::Form;
use super::w4a16::{quantise_groups, take_over};
use super::w8a16::{AffineRow, RangeOfRow, quantise_part, quantise_rows_as};

/// The input and the output of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded {
    /// Hash of the source bytes, without type and shape.
    pub source_hash: blake3::Hash,
    /// Bytes written to the sink.
    pub values_bytes: u64,
}

/// Encodes a tensor or view. For integers, the scales and centres of its rows or groups are appended to `affine`, which
/// must be given; other forms leave it alone. On error the sink has the blocks before the bad one.
pub fn encode(
    src: &SourceTensor<'_>,
    form: Form,
    values: &mut dyn Write,
    affine: Option<&mut Vec<AffineRow>>,
) -> Result<Encoded, QuantError> {
    encode_in_blocks(src, form, values, affine, BLOCK_BYTES)
}

/// Like [`encode`], with blocks of about `block_bytes` of source: a multiple of every element's size.
pub(crate) fn encode_in_blocks(
    src: &SourceTensor<'_>,
    form: Form,
    values: &mut dyn Write,
    affine: Option<&mut Vec<AffineRow>>,
    block_bytes: usize,
) -> Result<Encoded, QuantError> {
    if src.element_count() == 0 {
        return Err(QuantError::Empty {
            tensor: src.name().to_owned(),
            shape: src.shape().to_vec(),
        });
    }
    let mut stream = Stream {
        src,
        values,
        block_bytes,
        blocks: Vec::new(),
        hasher: blake3::Hasher::new(),
        values_bytes: 0,
    };
    let packed = src.packing().is_some();
    match form {
        _ if packed => stream.packed(form, affine)?,
        Form::F32 => stream.floats(form, f32_part)?,
        Form::F16 => stream.floats(form, f16_part)?,
        Form::I8 | Form::CentredI8 => stream.int8(form, given(src, affine)?)?,
        Form::I4(_) | Form::U4(_) => stream.int4(form, given(src, affine)?)?,
    }
    Ok(Encoded {
        source_hash: stream.hasher.finalize(),
        values_bytes: stream.values_bytes,
    })
}

/// The buffer for scales and centres; an error if it is missing.
fn given<'s>(
    src: &SourceTensor<'_>,
    affine: Option<&'s mut Vec<AffineRow>>,
) -> Result<&'s mut Vec<AffineRow>, QuantError> {
    affine.ok_or_else(|| QuantError::Room {
        tensor: src.name().to_owned(),
        buffer: "scales and centres",
        found: 0,
        expected: src.row_count(),
    })
}

/// Hash of the source bytes alone, the same as from [`encode`]; for looking into a cache before encoding. Pages stay
/// mapped, since encoding often follows.
pub fn source_hash(src: &SourceTensor<'_>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    src.stored_rows(0..src.row_count(), |stored| update(&mut hasher, stored));
    hasher.finalize()
}

/// One pass over a tensor.
struct Stream<'a> {
    src: &'a SourceTensor<'a>,
    values: &'a mut dyn Write,
    block_bytes: usize,
    /// Buffers for a window of encoded blocks, reused for the next.
    blocks: Vec<Block>,
    hasher: blake3::Hasher,
    values_bytes: u64,
}

/// The buffers of one encoded block.
#[derive(Default)]
struct Block {
    values: Vec<u8>,
    affine: Vec<AffineRow>,
    /// The unpacked rows of a packed source.
    unpacked: Vec<u8>,
}

/// A part of the source: its first byte within the tensor, and its bytes.
type Part<'a> = (usize, &'a [u8]);

/// Conversion of a part: tensor, start, part, buffer for the result.
type PartFn = fn(&SourceTensor<'_>, usize, &[u8], &mut [u8]) -> Result<(), QuantError>;

impl Stream<'_> {
    /// Encodes floats. Rows do not matter: blocks are cut anywhere between elements.
    fn floats(&mut self, form: Form, convert: PartFn) -> Result<(), QuantError> {
        let src = self.src;
        let whole = 0..src.bytes().len();
        let work = |(start, part): Part<'_>, block: &mut Block| {
            let elements = part.len() / src.dtype().element_bytes();
            block.values.resize(form.bytes_of(elements), 0);
            convert(src, start, part, &mut block.values)
        };
        self.pass(whole, self.block_bytes, &mut Vec::new(), work)
    }

    /// Encodes int8 in blocks of whole rows, or in parts of rows if a row is much longer than a block.
    fn int8(&mut self, form: Form, affine: &mut Vec<AffineRow>) -> Result<(), QuantError> {
        let src = self.src;
        check_rank(src)?;
        let row_bytes = src.bytes().len() / src.row_count();
        if row_bytes > self.block_bytes.saturating_mul(WIDE_ROW_BLOCKS) {
            return (0..src.row_count())
                .try_for_each(|row| self.wide_row(form, row, row_bytes, affine));
        }
        let block_rows = (self.block_bytes / row_bytes).max(1);
        let whole = 0..src.bytes().len();
        let work = |(start, part): Part<'_>, block: &mut Block| {
            let rows = start / row_bytes..start.saturating_add(part.len()) / row_bytes;
            block
                .values
                .resize(part.len() / src.dtype().element_bytes(), 0);
            block.affine.resize(rows.len(), AffineRow::ZERO);
            // The rows exist: they are cut from the tensor's own bytes.
            let rows = src.rows(rows).map_err(|_| fault(src, start, 0.0))?;
            quantise_rows_as(&rows, form, &mut block.values, &mut block.affine)
        };
        self.pass(whole, block_rows.saturating_mul(row_bytes), affine, work)
    }

    /// Encodes 4-bit integers in blocks of whole rows.
    fn int4(&mut self, form: Form, affine: &mut Vec<AffineRow>) -> Result<(), QuantError> {
        let src = self.src;
        check_groups(src, form)?;
        let row_bytes = src.bytes().len() / src.row_count();
        let block_rows = (self.block_bytes / row_bytes).max(1);
        let whole = 0..src.bytes().len();
        let work = |(start, part): Part<'_>, block: &mut Block| {
            let rows = start / row_bytes..start.saturating_add(part.len()) / row_bytes;
            // The rows exist: they are cut from the tensor's own bytes.
            let rows = src.rows(rows).map_err(|_| fault(src, start, 0.0))?;
            block.make_room(&rows, form);
            quantise_groups(&rows, form, &mut block.values, &mut block.affine)
        };
        self.pass(whole, block_rows.saturating_mul(row_bytes), affine, work)
    }

    /// Encodes one row in two passes, the first for its range.
    fn wide_row(
        &mut self,
        form: Form,
        row: usize,
        row_bytes: usize,
        affine: &mut Vec<AffineRow>,
    ) -> Result<(), QuantError> {
        let src = self.src;
        let start = row.saturating_mul(row_bytes);
        let whole = start..start.saturating_add(row_bytes);
        let bytes = src.bytes().get(whole.clone()).unwrap_or_default();
        let range = bytes
            .par_chunks(self.block_bytes)
            .map(|part| RangeOfRow::of_part(src.dtype(), part))
            .try_reduce(|| RangeOfRow::EMPTY, |a, b| Some(a.with(b)))
            .ok_or_else(|| fault(src, start, f32::MAX))?;
        let of_row = range.affine(form);
        affine.push(of_row);
        let work = |(_, part): Part<'_>, block: &mut Block| {
            block
                .values
                .resize(part.len() / src.dtype().element_bytes(), 0);
            quantise_part(src.dtype(), part, of_row, &mut block.values);
            Ok(())
        };
        self.pass(whole, self.block_bytes, &mut Vec::new(), work)
    }

    /// Writes the blocks of a window in order, up to the first one that failed.
    fn write_window(
        &mut self,
        results: Vec<Result<(), QuantError>>,
        affine: &mut Vec<AffineRow>,
    ) -> Result<(), QuantError> {
        for (result, block) in results.into_iter().zip(&self.blocks) {
            result?;
            write(self.src, self.values, &block.values)?;
            self.values_bytes = self.values_bytes.saturating_add(block.values.len() as u64);
            affine.extend_from_slice(&block.affine);
        }
        Ok(())
    }

    /// Encodes a packed source in blocks of whole rows, each unpacked and then encoded as a separate tensor.
    fn packed(
        &mut self,
        form: Form,
        affine: Option<&mut Vec<AffineRow>>,
    ) -> Result<(), QuantError> {
        let src = self.src;
        let mut none = Vec::new();
        let affine = match form {
            Form::I8 | Form::CentredI8 => {
                check_rank(src)?;
                given(src, affine)?
            }
            Form::I4(_) | Form::U4(_) => {
                check_groups(src, form)?;
                given(src, affine)?
            }
            Form::F32 | Form::F16 => &mut none,
        };
        let row_bytes = src.row_elements().saturating_mul(size_of::<f32>()).max(1);
        let block_rows = (self.block_bytes / row_bytes).max(1);
        self.blocks.resize_with(window_blocks(), Block::default);
        let window_rows = block_rows.saturating_mul(self.blocks.len());
        let mut first = 0;
        while first < src.row_count() {
            let rows = first..first.saturating_add(window_rows).min(src.row_count());
            let starts = rows.clone().into_par_iter().step_by(block_rows);
            let (hasher, blocks) = (&mut self.hasher, &mut self.blocks);
            let encode = |(start, block): (usize, &mut Block)| {
                let end = start.saturating_add(block_rows).min(rows.end);
                packed_block(src, start..end, form, block)
            };
            let (results, ()) = rayon::join(
                || -> Vec<Result<(), QuantError>> {
                    starts.zip(blocks.par_iter_mut()).map(encode).collect()
                },
                || src.stored_rows(rows.clone(), |stored| update(hasher, stored)),
            );
            self.write_window(results, affine)?;
            src.advise_rows_done(rows.clone());
            first = rows.end;
        }
        Ok(())
    }

    /// Hashes, encodes and writes a range of the source, in blocks of exactly `block_bytes` and a rest.
    fn pass(
        &mut self,
        whole: Range<usize>,
        block_bytes: usize,
        affine: &mut Vec<AffineRow>,
        work: impl Fn(Part<'_>, &mut Block) -> Result<(), QuantError> + Sync,
    ) -> Result<(), QuantError> {
        let bytes = self.src.bytes().get(whole.clone()).unwrap_or_default();
        self.blocks.resize_with(window_blocks(), Block::default);
        let mut start = whole.start;
        for window in bytes.chunks(block_bytes.saturating_mul(self.blocks.len())) {
            let (hasher, blocks) = (&mut self.hasher, &mut self.blocks);
            let encode = |((index, part), block): ((usize, &[u8]), &mut Block)| {
                let at = start.saturating_add(index.saturating_mul(block_bytes));
                work((at, part), block)
            };
            let (results, ()) = rayon::join(
                || -> Vec<Result<(), QuantError>> {
                    let parts = window.par_chunks(block_bytes).enumerate();
                    parts.zip(blocks.par_iter_mut()).map(encode).collect()
                },
                || update(hasher, window),
            );
            self.write_window(results, affine)?;
            let end = start.saturating_add(window.len());
            self.src.advise_done(start..end);
            start = end;
        }
        Ok(())
    }
}

impl Block {
    /// Makes room for the groups of some rows.
    fn make_room(&mut self, rows: &SourceTensor<'_>, form: Form) {
        let elements = rows.element_count();
        let groups = elements / form.group_columns().unwrap_or(1);
        self.values.resize(form.bytes_of(elements), 0);
        self.affine.resize(groups, AffineRow::ZERO);
    }
}

/// Takes over the blocks of rows as groups.
fn taken_block(
    src: &SourceTensor<'_>,
    rows: Range<usize>,
    (format, form): (BlockFormat, Form),
    block: &mut Block,
) -> Result<(), QuantError> {
    block.unpacked.clear();
    let stored = &mut block.unpacked;
    src.stored_rows(rows.clone(), |bytes| stored.extend_from_slice(bytes));
    let rows = src.rows(rows).map_err(|_| fault(src, 0, 0.0))?;
    let stored = std::mem::take(&mut block.unpacked);
    block.make_room(&rows, form);
    let (values, affine) = (&mut block.values, &mut block.affine);
    let taken = take_over(&rows, (format, form), &stored, values, affine);
    block.unpacked = stored;
    taken
}

/// Unpacks rows of a tensor and encodes them.
fn packed_block(
    src: &SourceTensor<'_>,
    rows: Range<usize>,
    form: Form,
    block: &mut Block,
) -> Result<(), QuantError> {
    if let Some(format) = src.block_format()
        && form.takes_over(format)
    {
        return taken_block(src, rows, (format, form), block);
    }
    src.unpack_rows(rows.clone(), &mut block.unpacked);
    let unpacked = std::mem::take(&mut block.unpacked);
    let plain = src.over(rows.clone(), &unpacked);
    let encoded = plain_block(&plain, rows, form, block);
    block.unpacked = unpacked;
    encoded
}

/// Encodes unpacked rows.
fn plain_block(
    plain: &SourceTensor<'_>,
    rows: Range<usize>,
    form: Form,
    block: &mut Block,
) -> Result<(), QuantError> {
    block.values.resize(form.bytes_of(plain.element_count()), 0);
    block.affine.clear();
    match form {
        Form::F32 => f32_part(plain, 0, plain.bytes(), &mut block.values),
        Form::F16 => f16_part(plain, 0, plain.bytes(), &mut block.values),
        Form::I8 | Form::CentredI8 => {
            block.affine.resize(rows.len(), AffineRow::ZERO);
            quantise_rows_as(plain, form, &mut block.values, &mut block.affine)
        }
        Form::I4(_) | Form::U4(_) => {
            block.make_room(plain, form);
            quantise_groups(plain, form, &mut block.values, &mut block.affine)
        }
    }
}

/// Checks that groups divide rows, and that no 4-bit blocks would be rounded a second time.
fn check_groups(src: &SourceTensor<'_>, form: Form) -> Result<(), QuantError> {
    check_rank(src)?;
    form.check_columns(src.name(), src.row_elements(), src.row_elements())?;
    form.check_blocks(src)
}

/// Checks that a tensor has rows, as channel-wise int8 requires.
fn check_rank(src: &SourceTensor<'_>) -> Result<(), QuantError> {
    if src.shape().len() >= 2 {
        return Ok(());
    }
    Err(QuantError::Rank {
        tensor: src.name().to_owned(),
        shape: src.shape().to_vec(),
    })
}

fn write(src: &SourceTensor<'_>, sink: &mut dyn Write, bytes: &[u8]) -> Result<(), QuantError> {
    sink.write_all(bytes).map_err(|source| QuantError::Write {
        tensor: src.name().to_owned(),
        source,
    })
}

/// The only place where source bytes are hashed. On one thread: beside encoding, blake3's rayon feature gained nothing
/// on two cores.
fn update(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(bytes);
}

/// Number of blocks in memory at once: two per thread, so that a slow one does not hold up the others.
fn window_blocks() -> usize {
    let blocks = rayon::current_num_threads().saturating_mul(2);
    blocks.clamp(2, WINDOW_BLOCKS_MAX)
}

/// Source bytes of a block, a multiple of every element's size. Chosen: large compared with the cost of a task, small
/// compared with memory.
const BLOCK_BYTES: usize = 4 << 20;

/// Number of blocks above which a row is encoded in parts. Chosen; rows of published models stay below 256 KiB.
const WIDE_ROW_BLOCKS: usize = 2;

/// Limits memory to 32 · (4 MiB and at most twice that encoded). Chosen.
const WINDOW_BLOCKS_MAX: usize = 32;
