//! Channel-wise W8A16: int8 weights with one f32 scale a row.
//!
//! Symmetric, round to nearest, ties to even: `scale = max|w| / 127`, `q = round(w / scale)`, so that
//! `|w - q·scale| ≤ scale/2` and the largest weight of a row becomes ±127 (-128 is not used). The
//! product `x·q` is scaled afterwards, see DESIGN §4.2. Rows are independent and every step is one
//! correctly rounded operation, so the bytes are the same for any number of threads, on any machine.
//!
//! A row of zeros has scale 1 and values 0. A scale is never below the smallest normal f32, so that no
//! device's flushing of subnormals can turn it into zero; rows that small do not reach ±127.

use crate::ingest::{SourceDtype, SourceTensor};

use super::element::{Element, fault, magnitude_max_of, with_element};
use super::error::QuantError;

/// Quantises all rows of a tensor or view. `out_values` has an element for each of the source,
/// `out_scales` one for each row. On error the contents of both are unspecified.
pub fn quantise_rows(
    src: &SourceTensor<'_>,
    out_values: &mut [i8],
    out_scales: &mut [f32],
) -> Result<(), QuantError> {
    quantise_rows_as(src, out_values, out_scales)
}

/// As [`quantise_rows`], also into bytes.
pub(super) fn quantise_rows_as<B: LowByte>(
    src: &SourceTensor<'_>,
    out_values: &mut [B],
    out_scales: &mut [f32],
) -> Result<(), QuantError> {
    let room = |buffer, found, expected| match found == expected {
        true => Ok(()),
        false => Err(QuantError::Room {
            tensor: src.name().to_owned(),
            buffer,
            found,
            expected,
        }),
    };
    room("values", out_values.len(), src.element_count())?;
    room("scales", out_scales.len(), src.row_count())?;
    with_element!(src.dtype(), E => quantise_rows_of::<E, B>(src, out_values, out_scales))
}

fn quantise_rows_of<E: Element, B: LowByte>(
    src: &SourceTensor<'_>,
    out_values: &mut [B],
    out_scales: &mut [f32],
) -> Result<(), QuantError> {
    // Rows without elements leave nothing to iterate over, but have scales.
    out_scales.fill(ZERO_ROW_SCALE);
    let row_elements = src.row_elements().max(1);
    let rows = E::elements(src.bytes()).chunks_exact(row_elements);
    let outs = out_values.chunks_exact_mut(row_elements);
    for ((row, out), scale) in rows.zip(outs).zip(out_scales) {
        let largest = magnitude_max_of::<E>(row).ok_or_else(|| fault(src, 0, f32::MAX))?;
        *scale = scale_of(largest);
        quantise_of::<E, B>(row, *scale, out);
    }
    Ok(())
}

/// The scale of a row whose largest magnitude this is.
pub(super) fn scale_of(largest: f32) -> f32 {
    if largest == 0.0 {
        return ZERO_ROW_SCALE;
    }
    (largest / LEVELS).max(f32::MIN_POSITIVE)
}

/// Quantises a part of a row whose scale is known.
pub(super) fn quantise_part(dtype: SourceDtype, part: &[u8], scale: f32, out: &mut [u8]) {
    with_element!(dtype, E => quantise_of::<E, u8>(E::elements(part), scale, out));
}

/// `|w| ≤ 127·scale·(1 + 2^-23)`, since the scale was rounded once: the quotient rounds into ±127
/// without a clamp, and is far inside the range where adding [`ROUND_TO_EVEN`] rounds.
#[inline]
fn quantise_of<E: Element, B: LowByte>(row: &[E::Raw], scale: f32, out: &mut [B]) {
    for (raw, out) in row.iter().zip(out) {
        let shifted = E::to_f32(*raw) / scale + ROUND_TO_EVEN;
        // The low byte of the bits is the rounded number in two's complement.
        *out = B::low_byte(shifted.to_bits());
    }
}

/// A value of eight bits: the number, or its byte in two's complement as it is written.
pub(super) trait LowByte {
    fn low_byte(bits: u32) -> Self;
}

impl LowByte for i8 {
    #[inline(always)]
    fn low_byte(bits: u32) -> Self {
        bits as i8
    }
}

impl LowByte for u8 {
    #[inline(always)]
    fn low_byte(bits: u32) -> Self {
        bits as u8
    }
}

/// Levels on each side of zero.
const LEVELS: f32 = 127.0;

/// Scale of a row of zeros: any would do, this one is harmless in products and quotients.
const ZERO_ROW_SCALE: f32 = 1.0;

/// 1.5 · 2^23. Between 2^23 and 2^24 an f32 has no fraction, so adding this rounds to nearest, ties to
/// even, as `f32::round_ties_even` does, which is a call on baseline x86.
const ROUND_TO_EVEN: f32 = 12_582_912.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tensor(dtype: SourceDtype, rows: usize, bytes: &[u8]) -> SourceTensor<'_> {
        let columns = bytes.len() / dtype.element_bytes() / rows;
        SourceTensor::from_bytes("w", dtype, vec![rows, columns], bytes).unwrap()
    }

    fn encoded(dtype: SourceDtype, numbers: &[f32]) -> Vec<u8> {
        let bytes = |x: &f32| match dtype {
            SourceDtype::F32 => x.to_le_bytes().to_vec(),
            SourceDtype::F16 => half::f16::from_f32(*x).to_le_bytes().to_vec(),
            SourceDtype::Bf16 => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
        };
        numbers.iter().flat_map(bytes).collect()
    }

    fn decoded(dtype: SourceDtype, bytes: &[u8]) -> Vec<f32> {
        with_element!(dtype, E => E::elements(bytes).iter().map(|raw| E::to_f32(*raw)).collect())
    }

    fn quantise(src: &SourceTensor<'_>) -> Result<(Vec<i8>, Vec<f32>), QuantError> {
        let mut values = vec![0; src.element_count()];
        let mut scales = vec![0.0; src.row_count()];
        quantise_rows(src, &mut values, &mut scales)?;
        Ok((values, scales))
    }

    fn check_row(weights: &[f32], values: &[i8], scale: f32) {
        let largest = weights.iter().fold(0.0_f32, |m, w| m.max(w.abs()));
        for (weight, value) in weights.iter().zip(values) {
            let plain = (weight / scale).round_ties_even().clamp(-127.0, 127.0);
            assert_eq!(f32::from(*value), plain, "{weight} / {scale}");
            let error = (f64::from(*weight) - f64::from(*value) * f64::from(scale)).abs();
            assert!(
                error <= f64::from(scale) * 0.500_01,
                "{weight} {value} {scale}"
            );
            if weight.abs() == largest && scale > f32::MIN_POSITIVE && largest > 0.0 {
                assert_eq!(value.unsigned_abs(), 127);
                assert_eq!(*value > 0, *weight > 0.0);
            }
        }
    }

    proptest! {
        #[test]
        fn values_are_nearest_and_the_largest_is_127(
            rows in 1_usize..5,
            columns in 1_usize..70,
            exponent in -140_i32..120,
            seed in proptest::collection::vec(-1.0_f32..1.0, 5 * 70),
        ) {
            let size = 2_f32.powi(exponent);
            let numbers: Vec<f32> = seed.iter().take(rows * columns).map(|x| x * size).collect();
            for dtype in [SourceDtype::F32, SourceDtype::F16, SourceDtype::Bf16] {
                let bytes = encoded(dtype, &numbers);
                let weights = decoded(dtype, &bytes);
                if dtype == SourceDtype::F16 && exponent > 14 {
                    continue;
                }
                let (values, scales) = quantise(&tensor(dtype, rows, &bytes)).unwrap();
                for (row, scale) in scales.iter().enumerate() {
                    let range = row * columns..(row + 1) * columns;
                    check_row(&weights[range.clone()], &values[range], *scale);
                }
            }
        }
    }

    #[test]
    fn ties_go_to_even() {
        // The scale is 1.
        let bytes = encoded(
            SourceDtype::F32,
            &[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5],
        );
        let (values, scales) = quantise(&tensor(SourceDtype::F32, 1, &bytes)).unwrap();
        assert_eq!(scales, [1.0]);
        assert_eq!(values, [127, 0, 2, 2, 0, -2, -126]);
    }

    #[test]
    fn rows_of_zeros_and_of_almost_zeros_are_tame() {
        let tiny = f32::from_bits(190);
        let bytes = encoded(SourceDtype::F32, &[0.0, -0.0, tiny, -tiny]);
        let (values, scales) = quantise(&tensor(SourceDtype::F32, 2, &bytes)).unwrap();
        assert_eq!(scales, [1.0, f32::MIN_POSITIVE]);
        assert_eq!(values, [0, 0, 0, 0]);
        let bytes = encoded(SourceDtype::F32, &[f32::MAX, f32::MIN]);
        assert_eq!(
            quantise(&tensor(SourceDtype::F32, 1, &bytes)).unwrap().0,
            [127, -127]
        );
    }

    #[test]
    fn what_is_not_finite_is_named_by_its_row() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for dtype in [SourceDtype::F32, SourceDtype::F16, SourceDtype::Bf16] {
                let mut numbers = [1.0; 12];
                numbers[7] = bad;
                let bytes = encoded(dtype, &numbers);
                let src = tensor(dtype, 4, &bytes);
                let error = quantise(&src).unwrap_err().to_string();
                assert_eq!(error, "tensor `w` holds NaN or infinity in row 2");
                let error = quantise(&src.rows(1..4).unwrap()).unwrap_err().to_string();
                assert_eq!(error, "tensor `w` holds NaN or infinity in row 2");
                assert!(quantise(&src.rows(3..4).unwrap()).is_ok());
            }
        }
    }

    #[test]
    fn buffers_must_fit() {
        let bytes = encoded(SourceDtype::F32, &[1.0; 4]);
        let src = tensor(SourceDtype::F32, 2, &bytes);
        let error = quantise_rows(&src, &mut [0; 3], &mut [0.0; 2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "values for tensor `w`: found room for 3, expected 4"
        );
        assert!(quantise_rows(&src, &mut [0; 4], &mut [0.0; 1]).is_err());
    }
}
