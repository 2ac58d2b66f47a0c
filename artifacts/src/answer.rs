//! Compares a device's output with a known answer.
//!
//! Used by both the compiler's tests and the runtime, so that a tolerance means the same to both.

use std::fmt;

/// The comparison of an output port with its known answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerMatch {
    /// Index of the largest difference, or of the first NaN; `None` if all values are equal.
    pub worst: Option<Difference>,
    /// Root mean square of the differences, as a share of that of the expected values.
    pub rms_share: f32,
    /// Largest share that the worst difference may have. The RMS may have half of it, since rounding errors spread and
    /// average out, while a damaged row of an inner matrix shifts the whole output.
    pub tolerance: f32,
}

/// One element of an output that differs from the answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Index into the port's values, row-major.
    pub element: usize,
    /// The device's value.
    pub found: f32,
    /// The known answer's value.
    pub expected: f32,
    /// The difference as a share of the port's largest expected value; infinite for NaN.
    pub share: f32,
}

/// Compares the values of one output port. `tolerance` is that of the variant, see
/// [`Variant::tolerance`](crate::manifest::Variant::tolerance). A missing or surplus value counts as an infinite
/// difference.
pub fn judge(expected: &[f32], found: &[f32], tolerance: f32) -> AnswerMatch {
    let largest = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let mut worst: Option<Difference> = None;
    let (mut square, mut scale) = (0.0_f64, 0.0_f64);
    for element in 0..expected.len().max(found.len()) {
        let at = |values: &[f32]| values.get(element).copied().unwrap_or(f32::NAN);
        let (expected, found) = (at(expected), at(found));
        let off = f64::from(found) - f64::from(expected);
        square += off * off;
        scale += f64::from(expected).powi(2);
        let share = share_of(off.abs(), f64::from(largest));
        if share > worst.map_or(0.0, |worst| worst.share) {
            worst = Some(Difference {
                element,
                found,
                expected,
                share,
            });
        }
    }
    AnswerMatch {
        worst,
        rms_share: share_of(square.sqrt(), scale.sqrt()),
        tolerance,
    }
}

/// The share of `part` in `whole`: 0 for a `part` of 0; infinite for any other share of 0, and for NaN.
fn share_of(part: f64, whole: f64) -> f32 {
    let share = part / whole;
    if part == 0.0 {
        0.0
    } else if share.is_nan() {
        f32::INFINITY
    } else {
        share as f32
    }
}

impl AnswerMatch {
    /// Whether the output is within its variant's tolerance, both at its worst element and in the mean.
    pub fn passes(&self) -> bool {
        let worst = self.worst.map_or(0.0, |worst| worst.share);
        worst <= self.tolerance && self.rms_share <= self.tolerance / 2.0
    }
}

impl fmt::Display for AnswerMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            worst: Some(worst),
            rms_share,
            tolerance,
        } = self
        else {
            return f.write_str("equal to the known answer");
        };
        let Difference {
            element,
            found,
            expected,
            share,
        } = worst;
        write!(
            f,
            "element `{element}` is `{found}`, expected `{expected}`: off by `{share:.1e}` of the largest, `{rms_share:.1e}` in the mean, tolerance `{tolerance:.1e}`"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: [f32; 4] = [1.0, -4.0, 0.5, 2.0];

    fn share(found: &[f32]) -> f32 {
        let verdict = judge(&EXPECTED, found, 0.05);
        verdict.worst.map_or(0.0, |worst| worst.share)
    }

    #[test]
    fn equal_values_pass_and_rounding_does() {
        let equal = judge(&EXPECTED, &EXPECTED, 0.0);
        assert!(equal.passes() && equal.worst.is_none());
        assert_eq!(equal.to_string(), "equal to the known answer");
        assert!(judge(&EXPECTED, &[1.01, -4.02, 0.5, 1.99], 0.05).passes());
        assert!(judge(&[0.0; 3], &[0.0; 3], 0.0).passes());
    }

    #[test]
    fn the_worst_element_is_named() {
        let verdict = judge(&EXPECTED, &[1.0, -4.0, 0.5, 3.0], 0.05);
        assert!(!verdict.passes());
        assert_eq!(
            verdict.to_string(),
            "element `3` is `3`, expected `2`: off by `2.5e-1` of the largest, `2.2e-1` in the mean, tolerance `5.0e-2`"
        );
    }

    #[test]
    fn many_small_differences_are_worse_than_one() {
        let off = |count: usize| -> Vec<f32> {
            let each = EXPECTED.iter().enumerate();
            each.map(|(at, x)| x + if at < count { 0.15 } else { 0.0 })
                .collect()
        };
        assert!(judge(&EXPECTED, &off(1), 0.1).passes());
        assert!(!judge(&EXPECTED, &off(4), 0.1).passes());
    }

    #[test]
    fn what_is_no_number_never_passes() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let verdict = judge(&EXPECTED, &[1.0, -4.0, wrong, 2.0], f32::MAX);
            assert_eq!(verdict.worst.map(|worst| worst.element), Some(2));
            assert!(!verdict.passes(), "{verdict}");
        }
        assert!(!judge(&[f32::NAN], &[f32::NAN], 1.0).passes());
    }

    #[test]
    fn lengths_must_agree() {
        assert_eq!(share(&EXPECTED[..3]), f32::INFINITY);
        assert_eq!(share(&[1.0, -4.0, 0.5, 2.0, 0.0]), f32::INFINITY);
        assert_eq!(judge(&[0.0], &[1e-30], 1.0).rms_share, f32::INFINITY);
    }
}
