//! Channel-wise W8A16: int8 weights with one f32 scale per row, and one f32 centre if the form has centres.
//!
//! Symmetric about a row's centre, round to nearest, ties to even: `scale = max|w - centre| / 127`, `q = round((w -
//! centre) / scale)`, so that the weight farthest from the centre becomes ±127 (-128 is not used), and `|w - (q·scale +
//! centre)| ≤ scale/2` except for the rounding of f32. The centre is zero, or the middle of the row's range: then
//! outliers of one sign do not make all steps larger. The product `x·q` is scaled afterwards, see DESIGN §4.2, and the
//! centre times the sum of x added. Rows are independent and every step is one correctly rounded operation, so the
//! bytes are the same for any number of threads, on any machine.
//!
//! A row whose weights all equal its centre has scale 1 and values 0. A scale is never below the smallest normal f32,
//! so that no device's flushing of subnormals can turn it into zero; rows with such small weights do not reach ±127.

use heg_ingest::{SourceDtype, SourceTensor};

use super::element::{Element, fault, magnitude_max_of, with_element};
use super::error::QuantError;
use super::form::Form;

/// Scale and centre of a row's integers, or of a group of its columns: an integer q has the value `scale · q + centre`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AffineRow {
    /// The factor of an integer.
    pub scale: f32,
    /// The value of the integer 0.
    pub centre: f32,
}

impl AffineRow {
    /// The scale and centre of a row of zeros.
    pub const ZERO: Self = Self {
        scale: FLAT_ROW_SCALE,
        centre: 0.0,
    };
}

/// The smallest and the largest weight of a row or a part of one, as integers of the same order.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangeOfRow {
    least: i32,
    largest: i32,
}

impl RangeOfRow {
    /// The range of no weights.
    pub(super) const EMPTY: Self = Self {
        least: i32::MAX,
        largest: i32::MIN,
    };

    /// The range of a part's weights; `None` if a weight is not finite.
    pub(super) fn of_part(dtype: SourceDtype, part: &[u8]) -> Option<Self> {
        with_element!(dtype, E => Self::of::<E>(E::elements(part)))
    }

    fn of<E: Element>(elements: &[E::Raw]) -> Option<Self> {
        magnitude_max_of::<E>(elements)?;
        let ranks = elements.iter().map(|raw| rank(E::to_f32(*raw)));
        Some(ranks.fold(Self::EMPTY, |range, rank| Self {
            least: range.least.min(rank),
            largest: range.largest.max(rank),
        }))
    }

    /// The range of both.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            least: self.least.min(other.least),
            largest: self.largest.max(other.largest),
        }
    }

    /// Scale and centre of a row with this range.
    pub(super) fn affine(self, form: Form) -> AffineRow {
        if self.least > self.largest {
            return AffineRow::ZERO;
        }
        let (least, largest) = (of_rank(self.least), of_rank(self.largest));
        let centre = match form {
            // Halves first: the sum of two large numbers need not be finite.
            Form::CentredI8 => 0.5 * least + 0.5 * largest,
            _ => 0.0,
        };
        let most = (largest - centre).max(centre - least);
        let scale = match most {
            0.0 => FLAT_ROW_SCALE,
            most => (most / LEVELS).max(f32::MIN_POSITIVE),
        };
        AffineRow { scale, centre }
    }
}

/// The bits as an integer that is ordered like the numbers, with negative zero below zero; its own inverse.
#[inline(always)]
fn rank(x: f32) -> i32 {
    flipped(x.to_bits().cast_signed())
}

fn of_rank(rank: i32) -> f32 {
    f32::from_bits(flipped(rank).cast_unsigned())
}

#[inline(always)]
fn flipped(bits: i32) -> i32 {
    bits ^ ((bits >> 31) & i32::MAX)
}

/// Quantises all rows of a tensor or view to a form of int8. `out_values` has one element for each of the source,
/// `out_rows` one for each row. On error the contents of both are unspecified.
pub fn quantise_rows(
    src: &SourceTensor<'_>,
    form: Form,
    out_values: &mut [i8],
    out_rows: &mut [AffineRow],
) -> Result<(), QuantError> {
    quantise_rows_as(src, form, out_values, out_rows)
}

/// Like [`quantise_rows`], also into bytes.
pub(super) fn quantise_rows_as<B: LowByte>(
    src: &SourceTensor<'_>,
    form: Form,
    out_values: &mut [B],
    out_rows: &mut [AffineRow],
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
    room("scales and centres", out_rows.len(), src.row_count())?;
    with_element!(src.dtype(), E => quantise_rows_of::<E, B>(src, form, out_values, out_rows))
}

fn quantise_rows_of<E: Element, B: LowByte>(
    src: &SourceTensor<'_>,
    form: Form,
    out_values: &mut [B],
    out_rows: &mut [AffineRow],
) -> Result<(), QuantError> {
    // Rows without elements leave nothing to iterate over, but have scales.
    out_rows.fill(AffineRow::ZERO);
    let row_elements = src.row_elements().max(1);
    let rows = E::elements(src.bytes()).chunks_exact(row_elements);
    let outs = out_values.chunks_exact_mut(row_elements);
    for ((row, out), affine) in rows.zip(outs).zip(out_rows) {
        let range = RangeOfRow::of::<E>(row).ok_or_else(|| fault(src, 0, f32::MAX))?;
        *affine = range.affine(form);
        quantise_of::<E, B>(row, *affine, out);
    }
    Ok(())
}

/// Quantises a part of a row with a known range.
pub(super) fn quantise_part(dtype: SourceDtype, part: &[u8], affine: AffineRow, out: &mut [u8]) {
    with_element!(dtype, E => quantise_of::<E, u8>(E::elements(part), affine, out));
}

/// `|w - centre| ≤ 127·scale·(1 + 2^-23)`, since rounding preserves the order of differences and the scale was rounded
/// once: the quotient rounds into ±127 without a clamp, and is far inside the range where adding [`ROUND_TO_EVEN`]
/// rounds.
#[inline]
fn quantise_of<E: Element, B: LowByte>(row: &[E::Raw], affine: AffineRow, out: &mut [B]) {
    for (raw, out) in row.iter().zip(out) {
        let shifted = (E::to_f32(*raw) - affine.centre) / affine.scale + ROUND_TO_EVEN;
        // The low byte of the bits is the rounded number in two's complement.
        *out = B::low_byte(shifted.to_bits());
    }
}

/// A value of eight bits: the number itself, or its byte in two's complement for writing.
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

/// Scale of a row whose weights all equal its centre: any would do, this one is harmless in products and quotients.
const FLAT_ROW_SCALE: f32 = 1.0;

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

    fn quantise(
        src: &SourceTensor<'_>,
        form: Form,
    ) -> Result<(Vec<i8>, Vec<AffineRow>), QuantError> {
        let mut values = vec![0; src.element_count()];
        let mut rows = vec![AffineRow::ZERO; src.row_count()];
        quantise_rows(src, form, &mut values, &mut rows)?;
        Ok((values, rows))
    }

    fn check_row(form: Form, weights: &[f32], values: &[i8], affine: AffineRow) {
        let AffineRow { scale, centre } = affine;
        let least = weights.iter().copied().fold(f32::INFINITY, f32::min);
        let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let middle = 0.5 * least + 0.5 * largest;
        assert_eq!(centre, if form == Form::CentredI8 { middle } else { 0.0 });
        for (weight, value) in weights.iter().zip(values) {
            let plain = ((weight - centre) / scale).round_ties_even();
            assert_eq!(f32::from(*value), plain.clamp(-127.0, 127.0), "{weight}");
            let stored = f64::from(*value) * f64::from(scale) + f64::from(centre);
            let error = (f64::from(*weight) - stored).abs();
            // Differences from the centre are rounded as well.
            let bound = f64::from(scale) * 0.500_01 + f64::from(centre.abs()) * 1e-7;
            assert!(error <= bound, "{weight} {value} {scale} {centre}");
        }
        let far = |w: &f32| (w - centre).abs();
        let farthest = weights.iter().map(far).fold(0.0, f32::max);
        if scale > f32::MIN_POSITIVE && farthest > 0.0 {
            let mut both = weights.iter().zip(values);
            assert!(both.all(|(w, q)| far(w) < farthest || q.unsigned_abs() == 127));
        }
    }

    proptest! {
        #[test]
        fn values_are_nearest_and_fill_the_range(
            rows in 1_usize..5,
            columns in 1_usize..70,
            exponent in -140_i32..120,
            shift in -3.0_f32..3.0,
            seed in proptest::collection::vec(-1.0_f32..1.0, 5 * 70),
        ) {
            let size = 2_f32.powi(exponent);
            let numbers = seed.iter().take(rows * columns).map(|x| (x + shift) * size);
            let numbers: Vec<f32> = numbers.collect();
            for dtype in [SourceDtype::F32, SourceDtype::F16, SourceDtype::Bf16] {
                let bytes = encoded(dtype, &numbers);
                let weights = decoded(dtype, &bytes);
                if dtype == SourceDtype::F16 && exponent > 12 {
                    continue;
                }
                for form in [Form::I8, Form::CentredI8] {
                    let (values, of_rows) = quantise(&tensor(dtype, rows, &bytes), form).unwrap();
                    for (row, affine) in of_rows.iter().enumerate() {
                        let range = row * columns..(row + 1) * columns;
                        check_row(form, &weights[range.clone()], &values[range], *affine);
                    }
                }
            }
        }
    }

    #[test]
    fn ties_go_to_even() {
        // The scale is 1, the centre 3.
        let bytes = encoded(
            SourceDtype::F32,
            &[130.0, -124.0, 3.5, 4.5, 5.5, 2.5, 1.5, -123.5],
        );
        let (values, rows) =
            quantise(&tensor(SourceDtype::F32, 1, &bytes), Form::CentredI8).unwrap();
        let (scale, centre) = (1.0, 3.0);
        assert_eq!(rows, [AffineRow { scale, centre }]);
        assert_eq!(values, [127, -127, 0, 2, 2, 0, -2, -126]);
    }

    #[test]
    fn rows_of_zeros_equals_and_extremes_are_tame() {
        let tiny = f32::from_bits(190);
        let numbers = [0.0, -0.0, tiny, -tiny, -7.25, -7.25];
        let bytes = encoded(SourceDtype::F32, &numbers);
        let (values, rows) =
            quantise(&tensor(SourceDtype::F32, 3, &bytes), Form::CentredI8).unwrap();
        let row = |scale, centre| AffineRow { scale, centre };
        let expected = [row(1.0, 0.0), row(f32::MIN_POSITIVE, 0.0), row(1.0, -7.25)];
        assert_eq!(rows, expected);
        assert_eq!(values, [0; 6]);
        for ends in [[f32::MAX, f32::MIN], [0.0, f32::MIN], [f32::MAX, -1.0]] {
            let bytes = encoded(SourceDtype::F32, &ends);
            let (values, rows) =
                quantise(&tensor(SourceDtype::F32, 1, &bytes), Form::CentredI8).unwrap();
            assert_eq!(values, [127, -127]);
            assert!(rows[0].scale.is_finite() && rows[0].centre.is_finite());
        }
    }

    #[test]
    fn what_is_not_finite_is_named_by_its_row() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for dtype in [SourceDtype::F32, SourceDtype::F16, SourceDtype::Bf16] {
                let mut numbers = [1.0; 12];
                numbers[7] = bad;
                let bytes = encoded(dtype, &numbers);
                let src = tensor(dtype, 4, &bytes);
                let error = quantise(&src, Form::I8).unwrap_err().to_string();
                assert_eq!(error, "tensor `w` holds NaN or infinity in row 2");
                let error = quantise(&src.rows(1..4).unwrap(), Form::I8)
                    .unwrap_err()
                    .to_string();
                assert_eq!(error, "tensor `w` holds NaN or infinity in row 2");
                assert!(quantise(&src.rows(3..4).unwrap(), Form::I8).is_ok());
            }
        }
    }

    #[test]
    fn buffers_must_fit() {
        let bytes = encoded(SourceDtype::F32, &[1.0; 4]);
        let src = tensor(SourceDtype::F32, 2, &bytes);
        let error =
            quantise_rows(&src, Form::I8, &mut [0; 3], &mut [AffineRow::ZERO; 2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "values for tensor `w`: found room for 3, expected 4"
        );
        assert!(quantise_rows(&src, Form::I8, &mut [0; 4], &mut [AffineRow::ZERO; 1]).is_err());
    }
}
