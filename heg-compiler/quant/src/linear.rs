//! `x · Wᵀ + b` over stored rows: the only part that handles gigabytes.
//!
//! A matrix is streamed in windows. The blocks of a window are multiplied in parallel, with each row on one thread,
//! while the window is hashed; then its pages are given back, so that memory stays as small as the outputs. Loops are
//! written to be vectorised with baseline SSE2 and NEON, and to give the same sums without vectors.

use heg_artifacts::manifest::ElementType;
use heg_artifacts::{Error, SectionId};
use rayon::prelude::*;

use super::element::{Bf16, Element, F16};
use super::stored::{Bytes, MappedWeight};

/// Rows of activations, row-major. A position is one number: exact in f32 far beyond any context.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueRows {
    /// Elements per row.
    pub width: usize,
    /// All elements.
    pub values: Vec<f32>,
}

impl ValueRows {
    /// The rows.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.width.max(1))
    }
}

/// `x · Wᵀ + b`. For int8 rows, scales are applied after the product, and centres as multiples of the sum of x; 4-bit
/// rows are unpacked to their values.
///
/// Errors: [`Error::Corrupt`] if a weight's bytes do not match its name.
pub fn linear(
    x: &ValueRows,
    weight: &MappedWeight,
    bias: Option<&MappedWeight>,
) -> Result<ValueRows, Error> {
    let products = match weight.element {
        ElementType::I4 | ElementType::U4 => unpacked_products(x, weight)?,
        ElementType::I8 => products(x, &weight.values, widen_i8)?,
        ElementType::F16 => products(x, &weight.values, F16::to_f32)?,
        ElementType::Bf16 => products(x, &weight.values, Bf16::to_f32)?,
        ElementType::F32 | ElementType::I64 => products(x, &weight.values, f32::from_le_bytes)?,
    };
    let floats = |weight: Option<&Bytes>| weight.map(Bytes::floats).transpose();
    let affine = weight.affine.as_ref();
    let affine = affine.filter(|_| weight.element == ElementType::I8);
    let scales = floats(affine.map(|affine| &affine.scales))?;
    let centres = floats(affine.and_then(|affine| affine.centres.as_ref()))?;
    let bias = floats(bias.map(|bias| &bias.values))?;
    let at = |numbers: &Option<Vec<f32>>, row: usize| numbers.as_ref()?.get(row).copied();
    let tokens = x.rows().len().max(1);
    let width = products.len() / tokens;
    let mut values = Vec::with_capacity(products.len());
    for (token, x) in x.rows().enumerate() {
        let sum: f32 = x.iter().sum();
        let column = products.iter().skip(token).step_by(tokens);
        values.extend(column.enumerate().map(|(row, product)| {
            let scaled = product * at(&scales, row).unwrap_or(1.0);
            let scaled = at(&centres, row).map_or(scaled, |centre| scaled + sum * centre);
            at(&bias, row).map_or(scaled, |bias| scaled + bias)
        }));
    }
    Ok(ValueRows { width, values })
}

/// Products of each row of the matrix with each token: [rows, tokens]. `B` is the size of an element in bytes.
fn products<const B: usize>(
    x: &ValueRows,
    matrix: &Bytes,
    widen: impl Fn([u8; B]) -> f32 + Copy + Sync,
) -> Result<Vec<f32>, Error> {
    let tokens: Vec<&[f32]> = x.rows().collect();
    let row_bytes = (x.width * B).max(1);
    stream(matrix, row_bytes, |_, block| {
        multiply_rows(block, row_bytes, &tokens, widen)
    })
}

/// Like [`products`], for 4-bit integers.
fn unpacked_products(x: &ValueRows, weight: &MappedWeight) -> Result<Vec<f32>, Error> {
    let tokens: Vec<&[f32]> = x.rows().collect();
    let halves = |numbers: Option<&Bytes>| numbers.map(Bytes::halves).transpose();
    let affine = weight.affine.as_ref();
    let scales = halves(affine.map(|affine| &affine.scales))?.unwrap_or_default();
    let centres = halves(affine.and_then(|affine| affine.centres.as_ref()))?;
    let columns = weight.values.mapping.len() * 2 / scales.len().max(1);
    let row_bytes = (x.width / 2).max(1);
    stream(&weight.values, row_bytes, |first_row, block| {
        let mut rows = Vec::with_capacity(block.len() * 2);
        let first = first_row * x.width / columns.max(1);
        for (group, bytes) in (first..).zip(block.chunks(columns.max(2) / 2)) {
            let scale = scales.get(group).copied().unwrap_or(0.0);
            let centre = centres.as_ref().map(|centres| centres.get(group).copied());
            let stored = |half: u8| match centre {
                // The product is exact, and the sum rounded once.
                Some(centre) => f32::from(half) * scale + centre.unwrap_or(0.0),
                None => (f32::from(half ^ 8) - 8.0) * scale,
            };
            let both = |byte: &u8| [stored(byte & 0x0f), stored(byte >> 4)];
            rows.extend(bytes.iter().flat_map(both).map(f32::to_le_bytes));
        }
        multiply_rows(
            rows.as_flattened(),
            x.width * size_of::<f32>(),
            &tokens,
            f32::from_le_bytes,
        )
    })
}

/// Runs `multiply` on blocks of whole rows and concatenates its results; it gets the first row of each block.
fn stream(
    matrix: &Bytes,
    row_bytes: usize,
    multiply: impl Fn(usize, &[u8]) -> Vec<f32> + Sync,
) -> Result<Vec<f32>, Error> {
    let block_rows = (BLOCK_BYTES / row_bytes).max(1);
    let block_bytes = block_rows * row_bytes;
    let window_bytes = block_bytes * WINDOW_BLOCKS;
    let mut hasher = blake3::Hasher::new();
    let mut products = Vec::new();
    for (at, window) in matrix.mapping.chunks(window_bytes).enumerate() {
        let all = || -> Vec<Vec<f32>> {
            let blocks = window.par_chunks(block_bytes).enumerate();
            let first = |index| (at * WINDOW_BLOCKS + index) * block_rows;
            blocks
                .map(|(index, block)| multiply(first(index), block))
                .collect()
        };
        let (_, blocks) = rayon::join(|| hasher.update(window), all);
        products.extend(blocks.into_iter().flatten());
        let start = (at * window_bytes) as u64;
        matrix
            .mapping
            .give_back(start..start + window.len() as u64)?;
    }
    matrix.check(SectionId::from(hasher.finalize()))?;
    Ok(products)
}

fn multiply_rows<const B: usize>(
    rows: &[u8],
    row_bytes: usize,
    tokens: &[&[f32]],
    widen: impl Fn([u8; B]) -> f32 + Copy,
) -> Vec<f32> {
    let mut products = Vec::with_capacity(rows.len() / row_bytes * tokens.len());
    // Two tokens at a time share the conversion of a weight.
    let (pairs, last) = tokens.as_chunks::<2>();
    for row in rows.chunks_exact(row_bytes) {
        let (row, _) = row.as_chunks();
        for pair in pairs {
            products.extend(dots(row, *pair, widen));
        }
        for token in last {
            let [product, _] = dots(row, [token, token], widen);
            products.push(product);
        }
    }
    products
}

/// Dot products of a row with two tokens: element i goes into sum i mod [`LANES`], the sums are added by halves. The
/// result depends neither on the other token nor on the machine's vectors.
#[inline(always)]
fn dots<const B: usize>(
    row: &[[u8; B]],
    tokens: [&[f32]; 2],
    widen: impl Fn([u8; B]) -> f32 + Copy,
) -> [f32; 2] {
    let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
    let (chunks, tail) = row.as_chunks::<LANES>();
    let [(a_chunks, a_tail), (b_chunks, b_tail)] = tokens.map(<[f32]>::as_chunks::<LANES>);
    for ((chunk, a), b) in chunks.iter().zip(a_chunks).zip(b_chunks) {
        let weights = chunk.map(widen);
        add_products(&mut first, &weights, a);
        add_products(&mut second, &weights, b);
    }
    for (at, weight) in tail.iter().enumerate() {
        let weight = [widen(*weight)];
        add_products(&mut first[at..], &weight, &a_tail[at..]);
        add_products(&mut second[at..], &weight, &b_tail[at..]);
    }
    [by_halves(first), by_halves(second)]
}

#[inline(always)]
fn add_products(sums: &mut [f32], weights: &[f32], x: &[f32]) {
    for ((sum, weight), x) in sums.iter_mut().zip(weights).zip(x) {
        *sum += weight * x;
    }
}

/// Converts an int8 as the last bits of 2²³ + 128 + itself, from which it follows exactly: 4.4 GB/s of weights instead
/// of 1.8 with a conversion (without AVX; two tokens, one thread of an EPYC).
#[inline(always)]
fn widen_i8([byte]: [u8; 1]) -> f32 {
    const SHIFT: f32 = 8_388_608.0;
    f32::from_bits(SHIFT.to_bits() | u32::from(byte ^ 0x80)) - (SHIFT + 128.0)
}

fn by_halves(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = sums.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
        half /= 2;
    }
    sums[0]
}

/// Number of separate sums: four SSE2 vectors for each of two tokens, half of the registers. Answers depend on it.
const LANES: usize = 16;

/// Approximate bytes that one thread multiplies at a time. Chosen: long compared with starting it, small compared with
/// a cache.
const BLOCK_BYTES: usize = 256 << 10;

/// Number of blocks that are hashed together while they are multiplied. Chosen.
const WINDOW_BLOCKS: usize = 16;
