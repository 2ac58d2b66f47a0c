//! The calibrated roofline of one kernel on one device: DESIGN §5, Agent.xpu Appendix A.
//!
//! ```text
//!  P(I) [FLOP/s]            F, Q      flops, bytes         one call's work [FLOP] and traffic [B]
//!    ^                      I         intensity            F / Q [FLOP/B]
//!    |  - - - - - - P_peak  B_eff     effective_bytes_per_sec
//!    |       ______ P_eff   P_eff     effective_flops_per_sec
//!    |      /               I*        knee_flops_per_byte
//!    |     / slope B_eff    T_launch  launch_us
//!    +----+-------> I       u_m, I_c, u_c                  from the anchors
//!         I*
//! ```
//!
//! Deliberately not here: launch overhead is DESIGN's addition to `T` alone, `P`, `BW` and `u` describe
//! the kernel while it runs; and nothing here steps with the chunk (DESIGN §4.4). Prose of the appendix
//! names equations (1), (2) and (3); the others are cited by the heading they stand under.

use serde::{Deserialize, Serialize};

use super::anchor::{DevicePeaks, RooflineAnchors};
use crate::error::{Ceiling, RooflineError};

/// Predicts latency, throughput and bandwidth of a kernel of any size on the device it was fitted to.
///
/// Invariants:
/// - the effective bandwidth is at least 1 B/s and at most the peak;
/// - the effective throughput is at least 1 FLOP/s and at most the peak;
/// - the knee is finite and above 0;
/// - the launch overhead is finite and at least 0.
///
/// Arguments from 0 to infinity are valid. For a negative one or NaN the result is NaN: a wrong argument never looks
/// like a prediction. The serialised form keeps only the inputs of the fit, and reading fits again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawRoofline", into = "RawRoofline")]
pub struct Roofline {
    peaks: DevicePeaks,
    anchors: RooflineAnchors,
    launch_us: f64,
    effective_bytes_per_sec: f64,
    effective_flops_per_sec: f64,
    knee_flops_per_byte: f64,
}

impl Roofline {
    /// Calibrates the two ceilings and the knee; `launch_us` is T_launch in µs, finite, from 0.
    ///
    /// B_eff = u_m · B_peak (equation 2), P_eff = min(P_peak, u_c · B_peak · I_c) (equation 3),
    /// I* = P_eff / B_eff. Refuses with [`RooflineError::Launch`], or with [`RooflineError::Effective`] when a ceiling
    /// falls below one unit per second.
    pub fn fit(
        peaks: DevicePeaks,
        anchors: RooflineAnchors,
        launch_us: f64,
    ) -> Result<Self, RooflineError> {
        if !(launch_us.is_finite() && launch_us >= 0.0) {
            return Err(RooflineError::Launch { found: launch_us });
        }
        let (memory, compute) = (anchors.memory_bound(), anchors.compute_bound());
        let effective_bytes_per_sec = memory.utilisation() * peaks.bytes_per_sec();
        let effective_flops_per_sec = capped(
            compute.utilisation() * peaks.bytes_per_sec() * compute.intensity_flops_per_byte(),
            peaks.flops_per_sec(),
        );
        for (ceiling, found) in [
            (Ceiling::Memory, effective_bytes_per_sec),
            (Ceiling::Compute, effective_flops_per_sec),
        ] {
            if found < EFFECTIVE_MIN {
                return Err(RooflineError::Effective { ceiling, found });
            }
        }
        Ok(Roofline {
            peaks,
            anchors,
            launch_us,
            effective_bytes_per_sec,
            effective_flops_per_sec,
            knee_flops_per_byte: effective_flops_per_sec / effective_bytes_per_sec,
        })
    }

    /// Time of one call in µs, launch included; at least [`Roofline::launch_us`].
    ///
    /// T(F, Q) = max(Q / B_eff, F / P_eff) + T_launch, with F in FLOP and Q in B: the unified expression
    /// under "Latency", plus the launch of DESIGN §5. Grows with F and with Q, and is infinite when one
    /// of them is or the time exceeds an `f64`. Holds for a kernel whose traffic passes one off-chip
    /// roof (remark i) and for sizes between the anchors; beyond them it extrapolates.
    pub fn latency_us(&self, flops: f64, bytes: f64) -> f64 {
        let compute_sec = checked_argument(flops) / self.effective_flops_per_sec;
        let memory_sec = checked_argument(bytes) / self.effective_bytes_per_sec;
        if compute_sec.is_nan() || memory_sec.is_nan() {
            return f64::NAN;
        }
        compute_sec.max(memory_sec) * MICROS_PER_SEC + self.launch_us
    }

    /// Throughput while the kernel runs, in FLOP/s; from 0 to P_eff.
    ///
    /// P(I) = min(B_eff · I, P_eff), under "Performance and Bandwidth", with I in FLOP/B: equation (1)
    /// with the calibrated ceilings. I = F / Q is infinite, and in range, for a kernel without traffic.
    pub fn performance_flops_per_sec(&self, intensity_flops_per_byte: f64) -> f64 {
        let intensity = checked_argument(intensity_flops_per_byte);
        capped(
            self.effective_bytes_per_sec * intensity,
            self.effective_flops_per_sec,
        )
    }

    /// Bandwidth drawn while the kernel runs, in B/s; from 0 to B_eff.
    ///
    /// BW(I) = min(B_eff, P_eff / I), under "Performance and Bandwidth", with I in FLOP/B. At I = 0, a
    /// pure copy, it is B_eff.
    pub fn bandwidth_bytes_per_sec(&self, intensity_flops_per_byte: f64) -> f64 {
        let intensity = checked_argument(intensity_flops_per_byte);
        capped(
            self.effective_flops_per_sec / intensity,
            self.effective_bytes_per_sec,
        )
    }

    /// Share of the peak bandwidth drawn while the kernel runs; from 0 to u_m.
    ///
    /// u(I) = min(u_m, u_c · I_c / I), the closed form that ends "Performance and Bandwidth", with I in
    /// FLOP/B. It is BW(I) / B_peak as long as the minimum in equation (3) does not clip, that is
    /// u_c · B_peak · I_c ≤ P_peak. An anchor that claims more than the device can compute is clipped
    /// there, but not in this form: past the knee the answer is then an upper bound of BW(I) / B_peak.
    pub fn utilisation(&self, intensity_flops_per_byte: f64) -> f64 {
        let intensity = checked_argument(intensity_flops_per_byte);
        let compute = self.anchors.compute_bound();
        capped(
            compute.utilisation() * compute.intensity_flops_per_byte() / intensity,
            self.anchors.memory_bound().utilisation(),
        )
    }

    /// The calibrated memory ceiling B_eff in B/s, equation (2).
    pub fn effective_bytes_per_sec(&self) -> f64 {
        self.effective_bytes_per_sec
    }

    /// The calibrated compute ceiling P_eff in FLOP/s, equation (3).
    pub fn effective_flops_per_sec(&self) -> f64 {
        self.effective_flops_per_sec
    }

    /// The knee I* in FLOP/B: kernels below it are memory-bound, those above it compute-bound.
    pub fn knee_flops_per_byte(&self) -> f64 {
        self.knee_flops_per_byte
    }

    /// The launch overhead T_launch, in µs.
    pub fn launch_us(&self) -> f64 {
        self.launch_us
    }

    /// The device's peaks that it was fitted to.
    pub fn peaks(&self) -> DevicePeaks {
        self.peaks
    }

    /// The anchors that it was fitted to.
    pub fn anchors(&self) -> RooflineAnchors {
        self.anchors
    }
}

impl TryFrom<RawRoofline> for Roofline {
    type Error = RooflineError;

    fn try_from(raw: RawRoofline) -> Result<Self, RooflineError> {
        Roofline::fit(raw.peaks, raw.anchors, raw.launch_us)
    }
}

/// The inputs of a [`Roofline`]'s fit: its serialised form.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Roofline", deny_unknown_fields)]
struct RawRoofline {
    peaks: DevicePeaks,
    anchors: RooflineAnchors,
    launch_us: f64,
}

impl From<Roofline> for RawRoofline {
    fn from(roofline: Roofline) -> Self {
        RawRoofline {
            peaks: roofline.peaks,
            anchors: roofline.anchors,
            launch_us: roofline.launch_us,
        }
    }
}

/// Returns the argument if it is from 0 to infinity, NaN otherwise; clears the sign of a negative zero, which would
/// turn a quotient into minus infinity.
fn checked_argument(value: f64) -> f64 {
    if value >= 0.0 { value.abs() } else { f64::NAN }
}

/// The smaller of the two, but NaN if `value` is NaN: `f64::min` would return the cap.
fn capped(value: f64, cap: f64) -> f64 {
    if value > cap { cap } else { value }
}

/// Lowest effective ceiling, in FLOP/s or B/s: chosen, not measured. It keeps the knee finite and above 0,
/// and any real device is orders of magnitude above it, unless its peaks were given in the wrong unit.
const EFFECTIVE_MIN: f64 = 1.0;

/// SI definition.
const MICROS_PER_SEC: f64 = 1e6;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::anchor::{RawAnchor, RawAnchors, RawDevicePeaks, RooflineAnchor};

    /// Numbers of the worked example in MODEL.md.
    fn example() -> Roofline {
        fit([12e12, 100e9], (2.0, 0.8), (200.0, 0.4), 50.0).unwrap()
    }

    fn fit(
        [flops_per_sec, bytes_per_sec]: [f64; 2],
        memory_bound: (f64, f64),
        compute_bound: (f64, f64),
        launch_us: f64,
    ) -> Result<Roofline, RooflineError> {
        let anchor = |(intensity_flops_per_byte, utilisation)| {
            RooflineAnchor::new(RawAnchor {
                intensity_flops_per_byte,
                utilisation,
            })
        };
        let anchors = RooflineAnchors::new(RawAnchors {
            memory_bound: anchor(memory_bound)?,
            compute_bound: anchor(compute_bound)?,
        })?;
        let peaks = DevicePeaks::new(RawDevicePeaks {
            flops_per_sec,
            bytes_per_sec,
        })?;
        Roofline::fit(peaks, anchors, launch_us)
    }

    fn assert_close(found: f64, expected: f64) {
        let close = found == expected || (found - expected).abs() <= 1e-12 * expected.abs();
        assert!(close, "found {found:?}, expected {expected:?}");
    }

    #[test]
    fn the_ends_of_the_axis_have_answers() {
        let roofline = example();
        let (b_eff, p_eff) = (
            roofline.effective_bytes_per_sec(),
            roofline.effective_flops_per_sec(),
        );
        for zero in [0.0, -0.0] {
            assert_eq!(roofline.performance_flops_per_sec(zero), 0.0);
            assert_eq!(roofline.bandwidth_bytes_per_sec(zero), b_eff);
            assert_eq!(roofline.utilisation(zero), 0.8);
        }
        assert_eq!(roofline.performance_flops_per_sec(f64::INFINITY), p_eff);
        assert_eq!(roofline.bandwidth_bytes_per_sec(f64::INFINITY), 0.0);
        assert_eq!(roofline.utilisation(f64::INFINITY), 0.0);
        assert_eq!(roofline.latency_us(0.0, 0.0), 50.0);
        assert_eq!(roofline.latency_us(f64::INFINITY, 0.0), f64::INFINITY);
        assert_eq!(roofline.latency_us(0.0, f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn a_wrong_argument_never_looks_like_a_prediction() {
        let roofline = example();
        for bad in [-1.0, -f64::MIN_POSITIVE, f64::NEG_INFINITY, f64::NAN] {
            assert!(roofline.latency_us(bad, 1.0).is_nan());
            assert!(roofline.latency_us(1.0, bad).is_nan());
            assert!(roofline.performance_flops_per_sec(bad).is_nan());
            assert!(roofline.bandwidth_bytes_per_sec(bad).is_nan());
            assert!(roofline.utilisation(bad).is_nan());
        }
    }

    #[test]
    fn launch_is_finite_and_not_negative() {
        for bad in [-1.0, f64::INFINITY, f64::NAN] {
            let refused = fit([12e12, 100e9], (2.0, 0.8), (200.0, 0.4), bad).unwrap_err();
            assert!(matches!(refused, RooflineError::Launch { .. }), "{refused}");
        }
        let free = fit([12e12, 100e9], (2.0, 0.8), (200.0, 0.4), 0.0).unwrap();
        assert_eq!(free.launch_us(), 0.0);
    }

    #[test]
    fn ceilings_below_one_unit_are_refused() {
        let check = |peaks, compute_bound, expected| {
            let refused = fit(peaks, (0.0, 0.5), compute_bound, 0.0).unwrap_err();
            assert!(
                matches!(refused, RooflineError::Effective { ceiling, .. } if ceiling == expected),
                "{refused}"
            );
        };
        check([12e12, 1.0], (200.0, 0.4), Ceiling::Memory);
        check([0.5, 100e9], (200.0, 0.4), Ceiling::Compute);
        check([12e12, 100e9], (1e-300, 0.4), Ceiling::Compute);
    }

    #[test]
    fn huge_numbers_stay_numbers() {
        let extreme = fit([f64::MAX, f64::MAX], (0.0, 1.0), (f64::MAX, 1.0), f64::MAX).unwrap();
        assert_eq!(extreme.effective_flops_per_sec(), f64::MAX);
        assert_eq!(extreme.knee_flops_per_byte(), 1.0);
        let steep = fit([1.0, f64::MAX], (0.0, 1.0), (f64::MAX, 1.0), 0.0).unwrap();
        assert!(steep.knee_flops_per_byte() > 0.0);
        assert_eq!(steep.performance_flops_per_sec(f64::MAX), 1.0);
    }

    /// Rooflines over and beyond the range of real devices, clipped and not clipped in similar numbers.
    fn rooflines() -> impl Strategy<Value = Roofline> {
        (
            [magnitudes(9.0..17.0), magnitudes(9.0..13.0)],
            (0.0..50.0_f64, 0.01..=1.0_f64),
            (50.0..5000.0_f64, 0.01..=1.0_f64),
            0.0..1e4_f64,
        )
            .prop_map(|(peaks, memory, compute, launch_us)| {
                fit(peaks, memory, compute, launch_us).expect("all within the ranges")
            })
    }

    fn is_clipped(roofline: &Roofline) -> bool {
        roofline.effective_flops_per_sec() == roofline.peaks().flops_per_sec()
    }

    /// Positive numbers, evenly distributed over their magnitudes.
    fn magnitudes(exponents: std::ops::Range<f64>) -> impl Strategy<Value = f64> {
        exponents.prop_map(|exponent| 10.0_f64.powf(exponent))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn latency_grows_with_work_and_traffic(
            roofline in rooflines(),
            flops in magnitudes(-2.0..18.0),
            bytes in magnitudes(-2.0..14.0),
            more in magnitudes(-6.0..18.0),
        ) {
            let latency_us = roofline.latency_us(flops, bytes);
            prop_assert!(roofline.latency_us(flops + more, bytes) >= latency_us);
            prop_assert!(roofline.latency_us(flops, bytes + more) >= latency_us);
        }

        #[test]
        fn latency_is_at_least_the_launch(
            roofline in rooflines(),
            flops in magnitudes(-300.0..300.0),
            bytes in magnitudes(-300.0..300.0),
        ) {
            prop_assert!(roofline.latency_us(flops, bytes) >= roofline.launch_us());
            prop_assert_eq!(roofline.latency_us(0.0, 0.0), roofline.launch_us());
        }

        #[test]
        fn both_regimes_meet_at_the_knee(roofline in rooflines(), bytes in magnitudes(3.0..12.0)) {
            let knee = roofline.knee_flops_per_byte();
            assert_close(roofline.performance_flops_per_sec(knee), roofline.effective_flops_per_sec());
            assert_close(roofline.bandwidth_bytes_per_sec(knee), roofline.effective_bytes_per_sec());
            let latency_us = roofline.latency_us(knee * bytes, bytes);
            // Both sides within `step` of the knee differ from it by no more than the step itself.
            let step = 1e-6;
            for near in [knee * (1.0 - step), knee * (1.0 + step)] {
                let close = |at_knee: f64, beside: f64| (beside - at_knee).abs() <= 1.001 * step * at_knee;
                prop_assert!(close(
                    roofline.performance_flops_per_sec(knee),
                    roofline.performance_flops_per_sec(near),
                ));
                prop_assert!(close(
                    roofline.bandwidth_bytes_per_sec(knee),
                    roofline.bandwidth_bytes_per_sec(near),
                ));
                prop_assert!(close(roofline.utilisation(knee), roofline.utilisation(near)));
                prop_assert!(close(latency_us, roofline.latency_us(near * bytes, bytes)));
            }
        }

        #[test]
        fn no_answer_exceeds_its_ceiling(
            roofline in rooflines(),
            intensity in magnitudes(-300.0..300.0),
        ) {
            let performance = roofline.performance_flops_per_sec(intensity);
            prop_assert!((0.0..=roofline.peaks().flops_per_sec()).contains(&performance));
            let bandwidth = roofline.bandwidth_bytes_per_sec(intensity);
            prop_assert!((0.0..=roofline.effective_bytes_per_sec()).contains(&bandwidth));
            prop_assert!(roofline.effective_bytes_per_sec() <= roofline.peaks().bytes_per_sec());
            let utilisation = roofline.utilisation(intensity);
            prop_assert!((0.0..=roofline.anchors().memory_bound().utilisation()).contains(&utilisation));
        }

        #[test]
        fn utilisation_is_the_share_of_the_peak(
            roofline in rooflines(),
            intensity in magnitudes(-3.0..7.0),
        ) {
            let share = roofline.bandwidth_bytes_per_sec(intensity) / roofline.peaks().bytes_per_sec();
            let utilisation = roofline.utilisation(intensity);
            if is_clipped(&roofline) {
                prop_assert!(utilisation >= share * (1.0 - 1e-12));
            } else {
                assert_close(utilisation, share);
            }
        }

        #[test]
        fn the_formulas_agree_with_each_other(
            roofline in rooflines(),
            flops in magnitudes(3.0..15.0),
            bytes in magnitudes(3.0..12.0),
        ) {
            let intensity = flops / bytes;
            let kernel_sec = {
                let free = Roofline::fit(roofline.peaks(), roofline.anchors(), 0.0).unwrap();
                free.latency_us(flops, bytes) / MICROS_PER_SEC
            };
            assert_close(roofline.performance_flops_per_sec(intensity), flops / kernel_sec);
            assert_close(roofline.bandwidth_bytes_per_sec(intensity), bytes / kernel_sec);
        }

        #[test]
        fn anchors_are_reproduced_when_they_bracket_the_knee(roofline in rooflines()) {
            let (memory, compute) =
                (roofline.anchors().memory_bound(), roofline.anchors().compute_bound());
            let rises = memory.utilisation() * memory.intensity_flops_per_byte()
                <= compute.utilisation() * compute.intensity_flops_per_byte();
            if !rises || compute.utilisation() > memory.utilisation() {
                return Ok(());
            }
            assert_close(
                roofline.utilisation(memory.intensity_flops_per_byte()),
                memory.utilisation(),
            );
            assert_close(
                roofline.utilisation(compute.intensity_flops_per_byte()),
                compute.utilisation(),
            );
        }
    }
}
