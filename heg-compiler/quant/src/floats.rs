//! Weights that stay floating-point, as little-endian F32 or F16 bytes.
//!
//! To F32 every source is exact. To F16 numbers are rounded to nearest, ties to even; subnormals are kept, and a number
//! that would round to infinity is an error: a model with such weights needs F32, and must not be saturated silently.
//! NaN and infinity in the source are errors for both.

use half::f16;
use half::slice::HalfFloatSliceExt;

use heg_ingest::{SourceDtype, SourceTensor};

use super::element::{Element, fault, magnitude_max, with_element};
use super::error::QuantError;

/// Writes the F32 bytes of a tensor or view: four for each element.
pub fn f32_bytes(src: &SourceTensor<'_>, out: &mut [u8]) -> Result<(), QuantError> {
    check_room(src, 4, out)?;
    f32_part(src, 0, src.bytes(), out)
}

/// Writes the F16 bytes of a tensor or view: two for each element.
pub fn f16_bytes(src: &SourceTensor<'_>, out: &mut [u8]) -> Result<(), QuantError> {
    check_room(src, 2, out)?;
    f16_part(src, 0, src.bytes(), out)
}

/// Like [`f32_bytes`], for the part of the tensor that starts at byte `start`.
pub(super) fn f32_part(
    src: &SourceTensor<'_>,
    start: usize,
    part: &[u8],
    out: &mut [u8],
) -> Result<(), QuantError> {
    if magnitude_max(src.dtype(), part).is_none() {
        return Err(fault(src, start, f32::MAX));
    }
    if src.dtype() == SourceDtype::F32 {
        out.copy_from_slice(part);
        return Ok(());
    }
    with_element!(src.dtype(), E => {
        for (raw, out) in E::elements(part).iter().zip(out.as_chunks_mut().0) {
            *out = E::to_f32(*raw).to_le_bytes();
        }
    });
    Ok(())
}

/// Like [`f16_bytes`], for the part of the tensor that starts at byte `start`.
pub(super) fn f16_part(
    src: &SourceTensor<'_>,
    start: usize,
    part: &[u8],
    out: &mut [u8],
) -> Result<(), QuantError> {
    if magnitude_max(src.dtype(), part).is_none_or(|largest| largest > F16_SAFE_MAX) {
        return Err(fault(src, start, F16_SAFE_MAX));
    }
    if src.dtype() == SourceDtype::F16 {
        out.copy_from_slice(part);
        return Ok(());
    }
    with_element!(src.dtype(), E => f16_of::<E>(E::elements(part), out));
    Ok(())
}

/// In blocks, so that the conversion instruction of the host, if it has one, converts many at once.
fn f16_of<E: Element>(elements: &[E::Raw], out: &mut [u8]) {
    let mut exact = [0.0_f32; BLOCK_ELEMENTS];
    let mut rounded = [f16::ZERO; BLOCK_ELEMENTS];
    let outs = out.chunks_mut(BLOCK_ELEMENTS * 2);
    for (elements, out) in elements.chunks(BLOCK_ELEMENTS).zip(outs) {
        for (raw, exact) in elements.iter().zip(&mut exact) {
            *exact = E::to_f32(*raw);
        }
        rounded.convert_from_f32_slice(&exact);
        for (rounded, out) in rounded.iter().zip(out.as_chunks_mut().0) {
            *out = rounded.to_le_bytes();
        }
    }
}

fn check_room(src: &SourceTensor<'_>, bytes: usize, out: &[u8]) -> Result<(), QuantError> {
    let expected = src.element_count().saturating_mul(bytes);
    if out.len() == expected {
        return Ok(());
    }
    Err(QuantError::Room {
        tensor: src.name().to_owned(),
        buffer: "bytes",
        found: out.len(),
        expected,
    })
}

/// The largest f32 that rounds to a finite f16: just below 65520, where the tie to infinity is.
const F16_SAFE_MAX: f32 = 65_520.0_f32.next_down();

/// Elements converted at once, on the stack. Chosen: 6 KiB, well inside the first cache.
const BLOCK_ELEMENTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dtype: SourceDtype, bytes: &[u8], expect: impl Fn(usize) -> f32) {
        let count = bytes.len() / dtype.element_bytes();
        let src = SourceTensor::from_bytes("w", dtype, vec![count], bytes).unwrap();
        let mut wide = vec![0; count * 4];
        f32_bytes(&src, &mut wide).unwrap();
        let mut narrow = vec![0; count * 2];
        f16_bytes(&src, &mut narrow).unwrap();
        for index in 0..count {
            let exact = expect(index);
            assert_eq!(wide[index * 4..][..4], exact.to_le_bytes());
            assert_eq!(narrow[index * 2..][..2], f16::from_f32(exact).to_le_bytes());
        }
    }

    #[test]
    fn every_number_that_fits_is_converted_as_half_does() {
        let fits = |x: f32| x.is_finite() && x.abs() < 65_520.0;
        let halves: Vec<f16> = (0..=u16::MAX)
            .map(f16::from_bits)
            .filter(|x| x.is_finite())
            .collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
        check(SourceDtype::F16, &bytes, |index| halves[index].to_f32());
        let brains = (0..=u16::MAX).map(half::bf16::from_bits);
        let brains: Vec<_> = brains.filter(|x| fits(x.to_f32())).collect();
        let bytes: Vec<u8> = brains.iter().flat_map(|x| x.to_le_bytes()).collect();
        check(SourceDtype::Bf16, &bytes, |index| brains[index].to_f32());
        let floats = (0..200_000_u32).map(|n| f32::from_bits(n.wrapping_mul(0x9e37_79b9)));
        let floats: Vec<_> = floats.filter(|x| fits(*x)).collect();
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        check(SourceDtype::F32, &bytes, |index| floats[index]);
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_row() {
        let refused = |x: f32| {
            let bytes: Vec<u8> = [1.0, 1.0, 1.0, x]
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect();
            let src = SourceTensor::from_bytes("w", SourceDtype::F32, vec![2, 2], &bytes).unwrap();
            f16_bytes(&src, &mut [0; 8]).map_err(|error| error.to_string())
        };
        assert_eq!(refused(65_519.996), Ok(()));
        assert_eq!(
            refused(-65_520.0).unwrap_err(),
            "tensor `w` holds a number in row 1 that is too large for F16: at most 65504 fits"
        );
        assert_eq!(
            refused(f32::NAN).unwrap_err(),
            "tensor `w` holds NaN or infinity in row 1"
        );
    }
}
