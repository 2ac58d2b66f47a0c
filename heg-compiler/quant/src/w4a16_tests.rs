//! Groups of 4-bit integers: their distance from the weights, and refusals.

use half::f16;
use heg_spec::GroupColumns;
use proptest::prelude::*;

use heg_ingest::{SourceDtype, SourceTensor};

use super::*;

const GROUPS: [GroupColumns; 3] = GroupColumns::ALL;

fn encoded(
    weights: &[f32],
    columns: usize,
    form: Form,
) -> Result<(Vec<u8>, Vec<AffineRow>), QuantError> {
    let bytes: Vec<u8> = weights.iter().flat_map(|x| x.to_le_bytes()).collect();
    let shape = vec![weights.len() / columns, columns];
    let src = SourceTensor::from_bytes("w", SourceDtype::F32, shape, &bytes).unwrap();
    let (mut values, mut affine) = (Vec::new(), Vec::new());
    encode(&src, form, &mut values, Some(&mut affine))?;
    Ok((values, affine))
}

/// The values of stored groups.
fn stored(values: &[u8], affine: &[AffineRow], form: Form) -> Vec<f32> {
    let halves = values.iter().flat_map(|byte| [byte & 0x0f, byte >> 4]);
    let columns = form.group_columns().unwrap();
    let number = |(at, half): (usize, u8)| {
        let AffineRow { scale, centre } = affine[at / columns];
        let q = match form.is_centred() {
            true => half as i8,
            false => (half << 4) as i8 >> 4,
        };
        f32::from(q) * scale + centre
    };
    halves.enumerate().map(number).collect()
}

fn error(weights: &[f32], stored: &[f32]) -> f64 {
    let each = weights.iter().zip(stored);
    each.map(|(w, s)| f64::from(w - s).powi(2)).sum()
}

/// The error of rounding to the range of each group, as in most files of 4-bit weights.
fn error_of_ranges(weights: &[f32], columns: usize, centred: bool) -> f64 {
    let halves = |x: f32| f16::from_f32(x).to_f32();
    let of_group = |group: &[f32]| {
        let least = group.iter().copied().fold(f32::INFINITY, f32::min);
        let largest = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let extreme = if largest > -least { largest } else { least };
        let (scale, centre) = match centred {
            true => (halves((largest - least) / 15.0), halves(least)),
            false => (halves(extreme / -8.0), 0.0),
        };
        let (low, high) = if centred { (0.0, 15.0) } else { (-8.0, 7.0) };
        let near =
            |w: &f32| ((w - centre) / scale).round_ties_even().clamp(low, high) * scale + centre;
        error(group, &group.iter().map(near).collect::<Vec<f32>>())
    };
    weights.chunks(columns).map(of_group).sum()
}

/// Sums of four uniform numbers: distributed almost like weights.
fn weights(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count)
        .map(|_| (next() + next() + next() + next()) * 0.02)
        .collect()
}

#[test]
fn errors_are_smaller_than_those_of_ranges() {
    let weights = weights(64 * 1024, 3);
    for group in GROUPS {
        for form in [Form::I4(group), Form::U4(group)] {
            let (values, affine) = encoded(&weights, 1024, form).unwrap();
            let found = error(&weights, &stored(&values, &affine, form));
            let plain = error_of_ranges(&weights, group.count() as usize, form.is_centred());
            assert!(found < 0.93 * plain, "{form:?}: {} of it", found / plain);
        }
    }
}

#[test]
fn weights_that_are_groups_already_are_exact() {
    let group = GroupColumns::SMALLEST;
    let weights: Vec<f32> = (0..256_u16)
        .map(|at| f32::from(at * 7 % 16) * 0.0625 - 0.375)
        .collect();
    let (values, affine) = encoded(&weights, 64, Form::U4(group)).unwrap();
    assert_eq!(stored(&values, &affine, Form::U4(group)), weights);
    let symmetric: Vec<f32> = weights.iter().map(|w| w - 0.125).collect();
    let (values, affine) = encoded(&symmetric, 64, Form::I4(group)).unwrap();
    assert_eq!(stored(&values, &affine, Form::I4(group)), symmetric);
}

#[test]
fn groups_that_do_not_divide_are_refused_with_those_that_would() {
    let refused = |columns, group| {
        let weights = vec![1.0; columns];
        encoded(&weights, columns, Form::U4(group))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(192, GROUPS[2]),
        "tensor `w` has rows of 192 columns, which groups of 128 do not divide: groups of 64 would"
    );
    assert_eq!(
        refused(72, GROUPS[0]),
        "tensor `w` has rows of 72 columns, which groups of 32 do not divide: \
         no groups would, so take 8-bit weights"
    );
}

#[test]
fn what_is_not_finite_or_too_large_is_named_by_its_row() {
    let refused = |x: f32| {
        let mut weights = weights(6 * 64, 1);
        weights[3 * 64 + 40] = x;
        encoded(&weights, 64, Form::U4(GROUPS[0]))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(f32::NAN),
        "tensor `w` holds NaN or infinity in row 3"
    );
    assert_eq!(
        refused(-3e6),
        "tensor `w` holds a number in row 3 that is too large for F16: at most 65504 fits"
    );
}

proptest! {
    /// For any weights: no step of a search is worse than the whole range, and the stored numbers fit f16.
    #[test]
    fn any_groups_are_encoded(
        exponent in -8_i32..14,
        shift in -2.0_f32..2.0,
        seed: u64,
        equal: bool,
    ) {
        let mut weights = weights(128, seed);
        if equal {
            weights.fill(0.03);
        }
        let size = 2.0_f32.powi(exponent);
        weights.iter_mut().for_each(|w| *w = (*w + shift * 0.05) * size);
        for group in GROUPS {
            for form in [Form::I4(group), Form::U4(group)] {
                let (values, affine) = encoded(&weights, 128, form).unwrap();
                let is_half = |x: f32| f16::from_f32(x).to_f32() == x;
                prop_assert!(affine.iter().all(|a| is_half(a.scale) && is_half(a.centre)));
                let found = error(&weights, &stored(&values, &affine, form));
                let plain = error_of_ranges(&weights, group.count() as usize, form.is_centred());
                prop_assert!(plain.is_nan() || found <= plain * 1.001 + f64::from(size * size) * 1e-6);
            }
        }
    }
}
