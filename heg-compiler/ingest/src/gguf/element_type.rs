//! The element types of ggml, by their numbers.

use std::fmt;

use super::super::tensor::SourceDtype;
use super::blocks::BlockFormat;

/// Storage format of a row's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowFormat {
    /// Single numbers.
    Plain(SourceDtype),
    /// Blocks of numbers.
    Blocks(BlockFormat),
}

impl RowFormat {
    /// The format with this number; `None` if it is not supported.
    pub(super) fn of_number(number: u32) -> Option<Self> {
        let blocks = |format| Some(Self::Blocks(format));
        match number {
            0 => Some(Self::Plain(SourceDtype::F32)),
            1 => Some(Self::Plain(SourceDtype::F16)),
            2 => blocks(BlockFormat::Q4_0),
            3 => blocks(BlockFormat::Q4_1),
            6 => blocks(BlockFormat::Q5_0),
            7 => blocks(BlockFormat::Q5_1),
            8 => blocks(BlockFormat::Q8_0),
            10 => blocks(BlockFormat::Q2K),
            11 => blocks(BlockFormat::Q3K),
            12 => blocks(BlockFormat::Q4K),
            13 => blocks(BlockFormat::Q5K),
            14 => blocks(BlockFormat::Q6K),
            30 => Some(Self::Plain(SourceDtype::Bf16)),
            _ => None,
        }
    }

    /// Number of elements stored together: a row holds a multiple of it.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::Plain(_) => 1,
            Self::Blocks(format) => format.block_elements(),
        }
    }

    /// Number of bytes of the elements stored together.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Plain(dtype) => dtype.element_bytes(),
            Self::Blocks(format) => format.block_bytes(),
        }
    }

    /// Decodes whole blocks into little-endian f32. Values that are not finite stay so.
    pub fn decode(self, bytes: &[u8], out: &mut [u8]) {
        let outs = out.as_chunks_mut::<4>().0.iter_mut();
        match self {
            Self::Blocks(format) => format.decode(bytes, out),
            Self::Plain(SourceDtype::F32) => {
                for (raw, out) in bytes.as_chunks::<4>().0.iter().zip(outs) {
                    *out = *raw;
                }
            }
            Self::Plain(SourceDtype::F16) => {
                for (raw, out) in bytes.as_chunks::<2>().0.iter().zip(outs) {
                    *out = half::f16::from_le_bytes(*raw).to_f32().to_le_bytes();
                }
            }
            Self::Plain(SourceDtype::Bf16) => {
                for (raw, out) in bytes.as_chunks::<2>().0.iter().zip(outs) {
                    *out = half::bf16::from_le_bytes(*raw).to_f32().to_le_bytes();
                }
            }
        }
    }
}

impl fmt::Display for RowFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => dtype.fmt(out),
            Self::Blocks(format) => format.fmt(out),
        }
    }
}

/// The number of an unsupported type, with ggml's name if it is known.
pub(super) fn shown(number: u32) -> String {
    let name = usize::try_from(number).ok().and_then(|n| NAMES.get(n));
    match name {
        Some(name) if !name.is_empty() => format!("{name} ({number})"),
        _ => number.to_string(),
    }
}

/// The supported types, for messages.
pub(super) const KNOWN: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or Q2_K to Q6_K";

/// ggml's names by number (`ggml_type` of `ggml.h`); empty for numbers no longer in use.
const NAMES: [&str; 41] = [
    "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K",
    "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", "", "", "", "TQ1_0",
    "TQ2_0", "", "", "", "MXFP4", "NVFP4",
];
