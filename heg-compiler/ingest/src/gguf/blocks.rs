//! ggml's block formats: their sizes and their decoding.
//!
//! Each decoder does the same as `dequantize_row_*` of `ggml-quants.c`, in the same order and with the same roundings
//! (a product, then a sum: never fused), so that the results are equal bit for bit. Tests compare them with vectors of
//! the `gguf` package.

use std::fmt;

use half::f16;

/// A format of blocks: a few numbers with their own scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockFormat {
    /// 32 numbers of 4 bits with one scale.
    Q4_0,
    /// 32 numbers of 4 bits with one scale and one minimum.
    Q4_1,
    /// 32 numbers of 5 bits with one scale.
    Q5_0,
    /// 32 numbers of 5 bits with one scale and one minimum.
    Q5_1,
    /// 32 numbers of 8 bits with one scale.
    Q8_0,
    /// 256 numbers of 2 bits, with a scale and a minimum of 4 bits for each 16.
    Q2K,
    /// 256 numbers of 3 bits, with a scale of 6 bits for each 16.
    Q3K,
    /// 256 numbers of 4 bits, with a scale and a minimum of 6 bits for each 32.
    Q4K,
    /// 256 numbers of 5 bits, with a scale and a minimum of 6 bits for each 32.
    Q5K,
    /// 256 numbers of 6 bits, with a scale of 8 bits for each 16.
    Q6K,
}

impl BlockFormat {
    /// Number of elements in a block.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => SMALL,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => LARGE,
        }
    }

    /// Number of bytes in a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Decodes whole blocks into little-endian f32; leaves out an incomplete last block.
    pub(crate) fn decode(self, blocks: &[u8], out: &mut [u8]) {
        match self {
            Self::Q4_0 => each(blocks, out, q4_0),
            Self::Q4_1 => each(blocks, out, q4_1),
            Self::Q5_0 => each(blocks, out, q5_0),
            Self::Q5_1 => each(blocks, out, q5_1),
            Self::Q8_0 => each(blocks, out, q8_0),
            Self::Q2K => each(blocks, out, q2_k),
            Self::Q3K => each(blocks, out, q3_k),
            Self::Q4K => each(blocks, out, q4_k),
            Self::Q5K => each(blocks, out, q5_k),
            Self::Q6K => each(blocks, out, q6_k),
        }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        })
    }
}

/// Runs a decoder over blocks of `B` bytes and `E` numbers.
fn each<const B: usize, const E: usize>(
    blocks: &[u8],
    out: &mut [u8],
    decode: impl Fn(&[u8; B], &mut [f32; E]),
) {
    let mut numbers = [0.0; E];
    let outs = out.as_chunks_mut::<4>().0.chunks_exact_mut(E);
    for (block, out) in blocks.as_chunks::<B>().0.iter().zip(outs) {
        decode(block, &mut numbers);
        for (number, out) in numbers.iter().zip(out) {
            *out = number.to_le_bytes();
        }
    }
}

/// The f16 at byte `at`.
fn half_at<const B: usize>(block: &[u8; B], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// d · f16, 16 bytes: number j in the low half of byte j, number 16 + j in its high half.
fn q4_0(block: &[u8; 18], out: &mut [f32; SMALL]) {
    let d = half_at(block, 0);
    for j in 0..SMALL / 2 {
        let byte = block[2 + j];
        out[j] = (f32::from(byte & 0x0f) - 8.0) * d;
        out[j + SMALL / 2] = (f32::from(byte >> 4) - 8.0) * d;
    }
}

/// As `q4_0`, with a minimum after the scale.
fn q4_1(block: &[u8; 20], out: &mut [f32; SMALL]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for j in 0..SMALL / 2 {
        let byte = block[4 + j];
        out[j] = f32::from(byte & 0x0f) * d + m;
        out[j + SMALL / 2] = f32::from(byte >> 4) * d + m;
    }
}

/// The fifth bits of numbers j and 16 + j, in position.
fn fifth_bits(high: u32, j: usize) -> (u8, u8) {
    let bit = |place: usize| ((high >> place) & 1) as u8 * 0x10;
    (bit(j), bit(j + SMALL / 2))
}

/// As `q4_0`, with the fifth bits of all numbers in four bytes after the scale.
fn q5_0(block: &[u8; 22], out: &mut [f32; SMALL]) {
    let d = half_at(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for j in 0..SMALL / 2 {
        let byte = block[6 + j];
        let (low, up) = fifth_bits(high, j);
        out[j] = (f32::from((byte & 0x0f) | low) - 16.0) * d;
        out[j + SMALL / 2] = (f32::from((byte >> 4) | up) - 16.0) * d;
    }
}

/// As `q5_0`, with a minimum after the scale.
fn q5_1(block: &[u8; 24], out: &mut [f32; SMALL]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for j in 0..SMALL / 2 {
        let byte = block[8 + j];
        let (low, up) = fifth_bits(high, j);
        out[j] = f32::from((byte & 0x0f) | low) * d + m;
        out[j + SMALL / 2] = f32::from((byte >> 4) | up) * d + m;
    }
}

/// d · f16, 32 signed bytes.
fn q8_0(block: &[u8; 34], out: &mut [f32; SMALL]) {
    let d = half_at(block, 0);
    for (out, byte) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(byte.cast_signed()) * d;
    }
}

/// 16 scales and minimums of four bits, 64 bytes of two-bit numbers, scale of the scales, scale of the minimums.
fn q2_k(block: &[u8; 84], out: &mut [f32; LARGE]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, min) = (half_at(block, 80), half_at(block, 82));
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = scales[group];
        let (dl, ml) = (d * f32::from(scale & 0x0f), min * f32::from(scale >> 4));
        let (start, shift) = two_bit_place(group);
        for (out, byte) in out.iter_mut().zip(&quants[start..start + 16]) {
            *out = dl * f32::from((byte >> shift) & 3) - ml;
        }
    }
}

/// The place of the two-bit numbers of a group of 16: the first byte, and the shift within each byte.
fn two_bit_place(group: usize) -> (usize, usize) {
    let (half, rest) = (group / 8, group % 8);
    (half * 32 + (rest % 2) * 16, (rest / 2) * 2)
}

/// 32 bytes of third bits, 64 of two-bit numbers, 16 scales of six bits in 12 bytes, their scale.
fn q3_k(block: &[u8; 110], out: &mut [f32; LARGE]) {
    let (high, quants, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let low = (scales[group % 8] >> (group / 8 * 4)) & 0x0f;
        let top = (scales[8 + group % 4] >> (group / 4 * 2)) & 3;
        let dl = d * (f32::from(low | (top << 4)) - 32.0);
        let (start, shift) = two_bit_place(group);
        let (bits, bit) = ((group % 2) * 16, group / 2);
        for (l, out) in out.iter_mut().enumerate() {
            let number = f32::from((quants[start + l] >> shift) & 3);
            let offset = if (high[bits + l] >> bit) & 1 == 0 {
                4.0
            } else {
                0.0
            };
            *out = dl * (number - offset);
        }
    }
}

/// Scale and minimum of a group of 32, six bits each, from 12 bytes.
fn six_bit_scale(scales: &[u8], group: usize) -> (f32, f32) {
    let (scale, min) = if group < 4 {
        (scales[group] & 63, scales[group + 4] & 63)
    } else {
        let both = scales[group + 4];
        (
            (both & 0x0f) | ((scales[group - 4] >> 6) << 4),
            (both >> 4) | ((scales[group] >> 6) << 4),
        )
    };
    (f32::from(scale), f32::from(min))
}

/// Scale of the scales, scale of the minimums, both of six bits in 12 bytes, 128 bytes of four-bit numbers.
fn q4_k(block: &[u8; 144], out: &mut [f32; LARGE]) {
    let (d, min) = (half_at(block, 0), half_at(block, 2));
    let (scales, quants) = (&block[4..16], &block[16..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, least) = six_bit_scale(scales, group);
        let (d1, m1) = (d * scale, min * least);
        let (start, shift) = (group / 2 * 32, group % 2 * 4);
        for (out, byte) in out.iter_mut().zip(&quants[start..start + 32]) {
            *out = d1 * f32::from((byte >> shift) & 0x0f) - m1;
        }
    }
}

/// As `q4_k`, with 32 bytes of fifth bits before the numbers.
fn q5_k(block: &[u8; 176], out: &mut [f32; LARGE]) {
    let (d, min) = (half_at(block, 0), half_at(block, 2));
    let (scales, high, quants) = (&block[4..16], &block[16..48], &block[48..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, least) = six_bit_scale(scales, group);
        let (d1, m1) = (d * scale, min * least);
        let (start, shift) = (group / 2 * 32, group % 2 * 4);
        for (l, out) in out.iter_mut().enumerate() {
            let low = (quants[start + l] >> shift) & 0x0f;
            let top = ((high[l] >> group) & 1) << 4;
            *out = d1 * f32::from(low | top) - m1;
        }
    }
}

/// 128 bytes of low halves, 64 bytes of the two bits above, 16 signed scales, their scale.
fn q6_k(block: &[u8; 210], out: &mut [f32; LARGE]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let dl = d * f32::from(scales[group].cast_signed());
        let (half, part, side) = (group / 8, group % 8 / 2, group % 2 * 16);
        let start = half * 64 + part % 2 * 32 + side;
        let (low_shift, high_shift) = (part / 2 * 4, part * 2);
        for (l, out) in out.iter_mut().enumerate() {
            let bits = (low[start + l] >> low_shift) & 0x0f;
            let top = (high[half * 32 + side + l] >> high_shift) & 3;
            *out = dl * (f32::from(bits | (top << 4)) - 32.0);
        }
    }
}

/// Numbers in a block with one scale (format).
const SMALL: usize = 32;

/// Numbers in a block with scales of scales (format).
const LARGE: usize = 256;
