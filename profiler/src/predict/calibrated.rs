//! A dynamic variant on the device it was measured on.
//!
//! The roofline is fitted to the variant's own table: its anchors are the calls with the most bandwidth and the most
//! throughput, its launch overhead the one that explains the other calls best. It gives the shape of the curve, the
//! bandwidth for the scheduler, and the latency of calls beyond the table. Within the table the roofline alone is not
//! good enough (kernels change their algorithm with c: on OpenVINO's CPU an `ffn` of 65 tokens takes twice as long as
//! one of 64), so there the table itself is used.

use heg_artifacts::manifest::Work;
use serde::{Deserialize, Serialize};

use super::{CallShape, LatencyTable};
use crate::model::{DevicePeaks, RawAnchor, RawAnchors, Roofline, RooflineAnchor, RooflineAnchors};

/// Latency of any call of a dynamic variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrated {
    /// The measured latencies.
    pub table: LatencyTable,
    /// The number of KV cache rows given to attention is always a multiple of this; 1 if it does not matter.
    pub context_step: u32,
    /// The roofline fitted to the table, if that has two anchors.
    pub roofline: Option<Roofline>,
}

impl Calibrated {
    /// Fits a variant's roofline to its table.
    pub fn fit(table: LatencyTable, context_step: u32, work: &Work, peaks: DevicePeaks) -> Self {
        Self {
            roofline: fit_roofline(&table, work, peaks),
            context_step: context_step.max(1),
            table,
        }
    }

    /// Latency of a call, in µs.
    pub fn latency_us(&self, work: &Work, call: CallShape) -> f64 {
        let step = self.context_step.max(1);
        let context = call.context.checked_next_multiple_of(step);
        let call = CallShape {
            context: context.unwrap_or(call.context),
            ..call
        };
        let trend = |at: CallShape| match &self.roofline {
            Some(roofline) => roofline.latency_us(at.flops(work), at.bytes(work)),
            None => at.flops(work),
        };
        self.table.latency_us(call, trend)
    }
}

/// Fits the roofline of a variant to its table (Agent.xpu, Appendix A). Returns `None` if all calls have the same
/// intensity, so that there is only one anchor.
pub fn fit_roofline(table: &LatencyTable, work: &Work, peaks: DevicePeaks) -> Option<Roofline> {
    let shortest_us = table
        .entries()
        .iter()
        .map(|(_, latency_us)| *latency_us)
        .fold(f64::INFINITY, f64::min);
    let candidates = (0..LAUNCH_CANDIDATES).filter_map(|step| {
        let launch_us = shortest_us * f64::from(step) / f64::from(LAUNCH_CANDIDATES);
        let roofline = with_launch(table, work, peaks, launch_us)?;
        Some((mean_error(table, work, &roofline), roofline))
    });
    let best = candidates.min_by(|one, other| one.0.total_cmp(&other.0));
    best.map(|(_, roofline)| roofline)
}

fn with_launch(
    table: &LatencyTable,
    work: &Work,
    peaks: DevicePeaks,
    launch_us: f64,
) -> Option<Roofline> {
    let rate = |entry: &(CallShape, f64), amount: f64| amount / (entry.1 - launch_us);
    let best = |amount: fn(CallShape, &Work) -> f64| {
        let entries = table.entries().iter();
        entries.max_by(|one, other| {
            rate(one, amount(one.0, work)).total_cmp(&rate(other, amount(other.0, work)))
        })
    };
    let anchor = |entry: &(CallShape, f64)| {
        let (flops, bytes) = (entry.0.flops(work), entry.0.bytes(work));
        let achieved = rate(entry, bytes) * MICROS_PER_SEC;
        RooflineAnchor::new(RawAnchor {
            intensity_flops_per_byte: flops / bytes,
            utilisation: (achieved / peaks.bytes_per_sec()).min(1.0),
        })
        .ok()
    };
    let anchors = RooflineAnchors::new(RawAnchors {
        memory_bound: anchor(best(CallShape::bytes)?)?,
        compute_bound: anchor(best(CallShape::flops)?)?,
    });
    Roofline::fit(peaks, anchors.ok()?, launch_us).ok()
}

/// Mean of |predicted − measured| / measured over the table.
fn mean_error(table: &LatencyTable, work: &Work, roofline: &Roofline) -> f64 {
    let errors = table.entries().iter().map(|(call, latency_us)| {
        let predicted = roofline.latency_us(call.flops(work), call.bytes(work));
        (predicted - latency_us).abs() / latency_us
    });
    errors.sum::<f64>() / table.entries().len() as f64
}

/// Launch overheads that are tried, as parts of the shortest latency. Chosen: errors of less than a twentieth of the
/// shortest call do not matter.
const LAUNCH_CANDIDATES: u32 = 20;

/// SI definition.
const MICROS_PER_SEC: f64 = 1e6;

#[cfg(test)]
mod tests {
    use heg_artifacts::manifest::Term;

    use super::*;
    use crate::model::RawDevicePeaks;

    /// 2·10⁶ FLOP a token over 10⁶ bytes of weights and 1000 bytes a token.
    fn token_wise() -> Work {
        let term = |factor, tokens| Term {
            factor,
            tokens,
            context: 0,
        };
        Work {
            flops: vec![term(2_000_000, 1)],
            bytes: vec![term(1_000_000, 0), term(1_000, 1)],
        }
    }

    fn peaks() -> DevicePeaks {
        DevicePeaks::new(RawDevicePeaks {
            flops_per_sec: 1e12,
            bytes_per_sec: 20e9,
        })
        .unwrap()
    }

    /// 10 GB/s, 100 GFLOP/s, 20 µs to launch.
    fn truth_us(call: CallShape) -> f64 {
        let work = token_wise();
        20.0 + (call.bytes(&work) / 10e9).max(call.flops(&work) / 100e9) * 1e6
    }

    fn table(sizes: &[u32]) -> LatencyTable {
        let entry = |tokens: &u32| {
            let call = CallShape {
                tokens: *tokens,
                context: 0,
            };
            (call, truth_us(call))
        };
        LatencyTable::new(sizes.iter().map(entry).collect()).unwrap()
    }

    #[test]
    fn a_roofline_is_found_again() {
        let roofline =
            fit_roofline(&table(&[1, 2, 4, 8, 64, 256]), &token_wise(), peaks()).unwrap();
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.02;
        assert!(
            near(roofline.effective_bytes_per_sec(), 10e9),
            "{roofline:?}"
        );
        assert!(
            near(roofline.effective_flops_per_sec(), 100e9),
            "{roofline:?}"
        );
        assert!((roofline.launch_us() - 20.0).abs() < 5.0, "{roofline:?}");
    }

    #[test]
    fn beyond_the_table_the_roofline_answers() {
        let work = token_wise();
        let calibrated = Calibrated::fit(table(&[1, 2, 4, 8, 64, 256]), 1, &work, peaks());
        for tokens in [300, 1000, 4000] {
            let call = CallShape { tokens, context: 0 };
            let found = calibrated.latency_us(&work, call) / truth_us(call);
            assert!((found - 1.0).abs() < 0.02, "{tokens}: {found}");
        }
    }

    #[test]
    fn one_call_has_no_roofline_but_a_latency() {
        let work = token_wise();
        let calibrated = Calibrated::fit(table(&[32]), 1, &work, peaks());
        assert_eq!(calibrated.roofline, None);
        let call = |tokens| CallShape { tokens, context: 0 };
        assert_eq!(calibrated.latency_us(&work, call(32)), truth_us(call(32)));
        assert_eq!(
            calibrated.latency_us(&work, call(64)),
            2.0 * truth_us(call(32))
        );
    }

    #[test]
    fn context_goes_in_steps() {
        let entries = vec![(1, 32, 10.0), (1, 64, 20.0)];
        let table = LatencyTable::try_from(entries).unwrap();
        let calibrated = Calibrated::fit(table, 32, &token_wise(), peaks());
        let at = |context| calibrated.latency_us(&token_wise(), CallShape { tokens: 1, context });
        assert_eq!([at(1), at(32), at(33), at(64)], [10.0, 10.0, 20.0, 20.0]);
    }
}
