//! Decodes source numbers (little-endian bytes of any alignment) to f32, and finds the largest magnitude.
//!
//! The inner loops of this crate. They are written to be vectorised with baseline SSE2 and NEON: no branch,
//! no call, no alignment. All of them are exact (every bf16 and f16 is an f32), so their results do not depend on the
//! width of vectors or the order of threads.

use heg_ingest::{SourceDtype, SourceTensor};

use super::error::QuantError;

/// One source format. `Raw` holds an element's bytes unchanged.
pub(crate) trait Element {
    type Raw: Copy + Sync + 'static;

    /// The elements of a slice; bytes of an incomplete last one are left out.
    fn elements(bytes: &[u8]) -> &[Self::Raw];

    /// Bits without the sign: for finite numbers, they are ordered like magnitudes.
    fn magnitude_bits(raw: Self::Raw) -> i32;

    /// The largest of all `magnitude_bits`; 0 if there are none.
    fn magnitude_bits_max(elements: &[Self::Raw]) -> i32;

    /// The smallest `magnitude_bits` of a value that is not finite.
    const INFINITY_BITS: i32;

    /// The magnitude with these bits if it is finite; an unspecified number otherwise.
    fn magnitude(bits: i32) -> f32;

    /// The number if it is finite; an unspecified number otherwise.
    fn to_f32(raw: Self::Raw) -> f32;
}

pub(crate) struct Bf16;
pub(crate) struct F16;
pub(super) struct F32;

impl Element for Bf16 {
    type Raw = [u8; 2];
    const INFINITY_BITS: i32 = 0x7f80;

    fn elements(bytes: &[u8]) -> &[[u8; 2]] {
        bytes.as_chunks().0
    }

    fn magnitude_bits(raw: [u8; 2]) -> i32 {
        i32::from(magnitude_bits_16(raw))
    }

    fn magnitude_bits_max(elements: &[[u8; 2]]) -> i32 {
        magnitude_bits_max_16(elements)
    }

    fn magnitude(bits: i32) -> f32 {
        f32::from_bits(bits.cast_unsigned() << 16)
    }

    #[inline(always)]
    fn to_f32(raw: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(raw)) << 16)
    }
}

impl Element for F16 {
    type Raw = [u8; 2];
    const INFINITY_BITS: i32 = 0x7c00;

    fn elements(bytes: &[u8]) -> &[[u8; 2]] {
        bytes.as_chunks().0
    }

    fn magnitude_bits(raw: [u8; 2]) -> i32 {
        i32::from(magnitude_bits_16(raw))
    }

    fn magnitude_bits_max(elements: &[[u8; 2]]) -> i32 {
        magnitude_bits_max_16(elements)
    }

    /// Exponent and mantissa move to their places in an f32, whose exponent is then 112 too small (127 - 15); the
    /// product corrects that, and is exact for subnormals too.
    #[inline(always)]
    fn magnitude(bits: i32) -> f32 {
        f32::from_bits(bits.cast_unsigned() << 13) * EXPONENT_SHIFT
    }

    #[inline(always)]
    fn to_f32(raw: [u8; 2]) -> f32 {
        let bits = i32::from(u16::from_le_bytes(raw));
        let sign = (bits & 0x8000).cast_unsigned() << 16;
        f32::from_bits(Self::magnitude(bits & 0x7fff).to_bits() | sign)
    }
}

impl Element for F32 {
    type Raw = [u8; 4];
    const INFINITY_BITS: i32 = 0x7f80_0000;

    fn elements(bytes: &[u8]) -> &[[u8; 4]] {
        bytes.as_chunks().0
    }

    fn magnitude_bits(raw: [u8; 4]) -> i32 {
        i32::from_le_bytes(raw) & 0x7fff_ffff
    }

    fn magnitude_bits_max(elements: &[[u8; 4]]) -> i32 {
        let bits = elements.iter().map(|raw| Self::magnitude_bits(*raw));
        bits.fold(0, i32::max)
    }

    fn magnitude(bits: i32) -> f32 {
        f32::from_bits(bits.cast_unsigned())
    }

    #[inline(always)]
    fn to_f32(raw: [u8; 4]) -> f32 {
        f32::from_le_bytes(raw)
    }
}

/// Signed, because SSE2 only has a maximum of signed 16-bit numbers.
#[inline(always)]
fn magnitude_bits_16(raw: [u8; 2]) -> i16 {
    i16::from_le_bytes(raw) & 0x7fff
}

fn magnitude_bits_max_16(elements: &[[u8; 2]]) -> i32 {
    let bits = elements.iter().map(|raw| magnitude_bits_16(*raw));
    i32::from(bits.fold(0, i16::max))
}

/// Runs generic code for the format of a tensor.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            heg_ingest::SourceDtype::Bf16 => {
                type $element = $crate::element::Bf16;
                $body
            }
            heg_ingest::SourceDtype::F16 => {
                type $element = $crate::element::F16;
                $body
            }
            heg_ingest::SourceDtype::F32 => {
                type $element = $crate::element::F32;
                $body
            }
        }
    };
}
pub(super) use with_element;

/// The largest magnitude; `None` if a value is not finite, 0 if there are no values.
pub(super) fn magnitude_max(dtype: SourceDtype, bytes: &[u8]) -> Option<f32> {
    with_element!(dtype, E => magnitude_max_of::<E>(E::elements(bytes)))
}

/// Like [`magnitude_max`], over elements.
pub(super) fn magnitude_max_of<E: Element>(elements: &[E::Raw]) -> Option<f32> {
    let bits = E::magnitude_bits_max(elements);
    (bits < E::INFINITY_BITS).then(|| E::magnitude(bits))
}

/// The error for the first element, from byte `start` of the tensor on, that is not finite or exceeds `limit`. Slow,
/// and called only if there is one.
pub(super) fn fault(src: &SourceTensor<'_>, start: usize, limit: f32) -> QuantError {
    let bytes = src.bytes().get(start..).unwrap_or_default();
    let (position, finite) =
        with_element!(src.dtype(), E => first_beyond::<E>(E::elements(bytes), limit));
    let element = (start / src.dtype().element_bytes()).saturating_add(position);
    let row = element / src.row_elements().max(1);
    let tensor = src.name().to_owned();
    let row = src.row_start().saturating_add(row);
    if finite {
        QuantError::Overflow { tensor, row }
    } else {
        QuantError::NotFinite { tensor, row }
    }
}

/// Index of the first element beyond a limit, and whether it is finite.
fn first_beyond<E: Element>(elements: &[E::Raw], limit: f32) -> (usize, bool) {
    let finite = |raw: E::Raw| E::magnitude_bits(raw) < E::INFINITY_BITS;
    let beyond = |raw: &E::Raw| !finite(*raw) || E::to_f32(*raw).abs() > limit;
    let position = elements.iter().position(beyond).unwrap_or(0);
    (
        position,
        elements.get(position).is_some_and(|raw| finite(*raw)),
    )
}

/// 2^112, see [`F16::to_f32`].
const EXPONENT_SHIFT: f32 = f32::from_bits((127 + 112) << 23);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_number_decodes_as_in_half() {
        for bits in 0..=u16::MAX {
            let raw = bits.to_le_bytes();
            let f16 = half::f16::from_bits(bits);
            let bf16 = half::bf16::from_bits(bits);
            assert_eq!(
                F16::magnitude_bits(raw) >= F16::INFINITY_BITS,
                !f16.is_finite()
            );
            assert_eq!(
                Bf16::magnitude_bits(raw) >= Bf16::INFINITY_BITS,
                !bf16.is_finite()
            );
            if f16.is_finite() {
                assert_eq!(F16::to_f32(raw).to_bits(), f16.to_f32().to_bits());
            }
            if bf16.is_finite() {
                assert_eq!(Bf16::to_f32(raw).to_bits(), bf16.to_f32().to_bits());
            }
        }
    }

    #[test]
    fn the_largest_magnitude_is_found_in_every_place() {
        for place in 0..67 {
            let mut numbers = [0.5_f32; 67];
            numbers[place] = -3.0;
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!(magnitude_max(SourceDtype::F32, &bytes), Some(3.0));
            numbers[place] = f32::NAN;
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!(magnitude_max(SourceDtype::F32, &bytes), None);
        }
        assert_eq!(magnitude_max(SourceDtype::F16, &[]), Some(0.0));
    }
}
