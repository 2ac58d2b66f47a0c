//! Group-wise W4A16: 4-bit weights, and for each group of neighbouring columns an f16 scale and, in the unsigned form,
//! an f16 centre: the value of the integer 0.
//!
//! Both are searched for by least squared error, from the weights alone: the search tries several fractions of a
//! group's range, fits integers and scale to each other in turn, and keeps the best of all tries, measured after
//! rounding to f16. Groups are independent, sums have one order, and every operation is rounded once, so the bytes are
//! the same for any number of threads, on any machine.
//!
//! Blocks of a GGUF file that match the groups, Q4_0 and Q4_1, are taken over: their scales and integers stay.

use half::f16;

use heg_ingest::{BlockFormat, SourceTensor};

use super::element::{Element, fault, with_element};
use super::error::QuantError;
use super::form::Form;
use super::w8a16::AffineRow;

/// Columns of the largest group.
const COLUMNS_MAX: usize = 128;

/// Fractions of a group's range from which searches start.
const RANGES: [f32; 7] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76];

/// Number of times that integers and scale are fitted to each other.
const FITS: usize = 2;

/// Number of separate partial sums, for vectorisation.
const LANES: usize = 8;

/// Quantises all rows of a tensor or view. `values` has half a byte per element, `affine` one entry per group.
pub(super) fn quantise_groups(
    src: &SourceTensor<'_>,
    form: Form,
    values: &mut [u8],
    affine: &mut [AffineRow],
) -> Result<(), QuantError> {
    with_element!(src.dtype(), E => quantise_groups_of::<E>(src, form, values, affine))
}

fn quantise_groups_of<E: Element>(
    src: &SourceTensor<'_>,
    form: Form,
    values: &mut [u8],
    affine: &mut [AffineRow],
) -> Result<(), QuantError> {
    let columns = form.group_columns().unwrap_or(COLUMNS_MAX);
    let levels = Levels::of(form);
    let elements = E::elements(src.bytes());
    let outs = values.chunks_exact_mut(columns / 2).zip(affine);
    let mut weights = [0.0; COLUMNS_MAX];
    for (index, (group, (out, affine))) in elements.chunks_exact(columns).zip(outs).enumerate() {
        let mut largest = 0;
        for (weight, raw) in weights.iter_mut().zip(group) {
            largest = largest.max(E::magnitude_bits(*raw));
            *weight = E::to_f32(*raw);
        }
        if largest >= E::INFINITY_BITS {
            return Err(fault(src, 0, f32::MAX));
        }
        let weights = weights.get(..group.len()).unwrap_or_default();
        let found = levels.search(weights).ok_or_else(|| QuantError::Overflow {
            tensor: src.name().to_owned(),
            row: row_of(src, index, columns),
        })?;
        levels.pack(weights, found, out);
        *affine = found;
    }
    Ok(())
}

/// Takes over blocks of 32 as groups. `stored` are whole blocks; `values` and `affine` have room for them.
pub(super) fn take_over(
    src: &SourceTensor<'_>,
    (format, form): (BlockFormat, Form),
    stored: &[u8],
    values: &mut [u8],
    affine: &mut [AffineRow],
) -> Result<(), QuantError> {
    let blocks = stored.chunks_exact(format.block_bytes());
    let outs = values.chunks_exact_mut(16).zip(affine);
    for (index, (block, (out, affine))) in blocks.zip(outs).enumerate() {
        let number = |at: usize| match block.get(at..at + 2) {
            Some([low, high]) => f16::from_le_bytes([*low, *high]).to_f32(),
            _ => f32::NAN,
        };
        let scale = number(0);
        let (centre, head) = match format {
            BlockFormat::Q4_1 => (number(2), 4),
            // The value of the integer 0, if 8 has the value 0: exact.
            _ if form.is_centred() => (-8.0 * scale, 2),
            _ => (0.0, 2),
        };
        let is_half = |x: f32| x.is_finite() && f16::from_f32(x).to_f32() == x;
        if !is_half(scale) || !is_half(centre) {
            return Err(QuantError::NotFinite {
                tensor: src.name().to_owned(),
                row: row_of(src, index, format.block_elements()),
            });
        }
        *affine = AffineRow { scale, centre };
        // There, the first sixteen columns are in the low halves; here, the even columns are.
        let flipped = if form.is_centred() { 0 } else { 0x88 };
        let integers = block.get(head..).unwrap_or_default();
        let half = |column: usize| {
            let byte = integers.get(column % 16).copied().unwrap_or(0);
            (byte >> (column / 16 * 4)) & 0x0f
        };
        for (pair, out) in out.iter_mut().enumerate() {
            *out = (half(2 * pair) | half(2 * pair + 1) << 4) ^ flipped;
        }
    }
    Ok(())
}

/// The row of a group, counted from the start of the stored tensor.
fn row_of(src: &SourceTensor<'_>, group: usize, columns: usize) -> usize {
    let row = group.saturating_mul(columns) / src.row_elements().max(1);
    src.row_start().saturating_add(row)
}

/// The range of a form's integers.
#[derive(Clone, Copy)]
struct Levels {
    least: f32,
    largest: f32,
    /// Whether the integer 0 has a value of its own, the centre.
    centred: bool,
}

/// Sums over a group with integers q.
#[derive(Default)]
struct Sums {
    q: f64,
    qq: f64,
    w: f64,
    wq: f64,
}

impl Levels {
    fn of(form: Form) -> Self {
        let centred = form.is_centred();
        let (least, largest) = if centred { (0.0, 15.0) } else { (-8.0, 7.0) };
        Self {
            least,
            largest,
            centred,
        }
    }

    /// Scale and centre with the least error; `None` if a number is too large for f16.
    fn search(self, weights: &[f32]) -> Option<AffineRow> {
        let least = weights.iter().copied().fold(f32::INFINITY, f32::min);
        let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut best = None;
        let mut consider = |affine: AffineRow| {
            let halves = |x: f32| f16::from_f32(x).to_f32();
            let rounded = AffineRow {
                scale: halves(affine.scale),
                centre: halves(affine.centre),
            };
            let error = self.error(weights, rounded);
            if error.is_finite() && best.is_none_or(|(least, _)| error < least) {
                best = Some((error, rounded));
            }
        };
        for part in RANGES {
            let mut affine = self.of_range(least, largest, part);
            if part == 1.0 {
                consider(affine);
            }
            for _ in 0..FITS {
                affine = self.fitted(weights, affine);
            }
            consider(affine);
        }
        best.map(|(_, affine)| affine)
    }

    /// Scale and centre for a fraction of a range, about its middle.
    fn of_range(self, least: f32, largest: f32, part: f32) -> AffineRow {
        if !self.centred {
            // The weight of the largest magnitude is 8 steps from zero, on the side that has 8.
            let extreme = if largest > -least { largest } else { least };
            return AffineRow {
                scale: extreme * part / -8.0,
                centre: 0.0,
            };
        }
        let half = (0.5 * largest - 0.5 * least) * part;
        AffineRow {
            scale: half / 7.5,
            centre: 0.5 * largest + 0.5 * least - half,
        }
    }

    /// The integer whose value is nearest to a weight.
    #[inline(always)]
    fn nearest(self, weight: f32, affine: AffineRow, inverse: f32) -> f32 {
        let exact = (weight - affine.centre) * inverse;
        let within = exact.max(self.least).min(self.largest);
        (within + ROUND_TO_EVEN) - ROUND_TO_EVEN
    }

    /// Scale and centre that best fit the nearest integers of others.
    fn fitted(self, weights: &[f32], affine: AffineRow) -> AffineRow {
        let sums = self.sums(weights, affine);
        let count = weights.len() as f64;
        let (scale, centre) = match self.centred {
            true => {
                let spread = count * sums.qq - sums.q * sums.q;
                let scale = (count * sums.wq - sums.q * sums.w) / spread;
                (scale, (sums.w - scale * sums.q) / count)
            }
            false => (sums.wq / sums.qq, 0.0),
        };
        match scale.is_finite() && centre.is_finite() {
            true => AffineRow {
                scale: scale as f32,
                centre: centre as f32,
            },
            false => affine,
        }
    }

    fn sums(self, weights: &[f32], affine: AffineRow) -> Sums {
        let inverse = inverse(affine.scale);
        let mut lanes = [[0.0_f32; LANES]; 4];
        for weights in weights.as_chunks::<LANES>().0 {
            for (lane, weight) in weights.iter().enumerate() {
                let q = self.nearest(*weight, affine, inverse);
                lanes[0][lane] += q;
                lanes[1][lane] += q * q;
                lanes[2][lane] += weight;
                lanes[3][lane] += weight * q;
            }
        }
        let [q, qq, w, wq] = lanes.map(|lanes| lanes.iter().map(|x| f64::from(*x)).sum());
        Sums { q, qq, w, wq }
    }

    /// The sum of squared differences.
    fn error(self, weights: &[f32], affine: AffineRow) -> f32 {
        let inverse = inverse(affine.scale);
        let mut lanes = [0.0_f32; LANES];
        for weights in weights.as_chunks::<LANES>().0 {
            for (lane, weight) in weights.iter().enumerate() {
                let q = self.nearest(*weight, affine, inverse);
                let difference = weight - (q * affine.scale + affine.centre);
                lanes[lane] += difference * difference;
            }
        }
        lanes.iter().sum()
    }

    /// Writes the nearest integers, two to a byte.
    fn pack(self, weights: &[f32], affine: AffineRow, out: &mut [u8]) {
        let inverse = inverse(affine.scale);
        for ([even, odd], out) in weights.as_chunks::<2>().0.iter().zip(out) {
            let half = |weight: f32| self.nearest(weight, affine, inverse) as i8 as u8 & 0x0f;
            *out = half(*even) | half(*odd) << 4;
        }
    }
}

/// The inverse of a scale; 0 if the scale is too small to divide by.
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// 1.5 · 2^23: see `w8a16`.
const ROUND_TO_EVEN: f32 = 12_582_912.0;
