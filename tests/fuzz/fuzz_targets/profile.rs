//! Reads arbitrary text as a profile, the side file with a device's measurements. An accepted profile can be written
//! and read again, and its predictions are latencies.

use heg_artifacts::manifest::{Term, Work};
use heg_profiler::measure::{Profile, VariantProfile};
use heg_profiler::partition::{CutRules, CutShape, MeasuredPair, solve};
use heg_profiler::predict::{Calibrated, CallShape};
use heg_profiler::{DevicePeaks, RawDevicePeaks};
use heg_spec::{CutProduct, Side};

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(profile) = Profile::parse(text) else {
        return;
    };
    match profile.to_text() {
        Ok(written) => assert_eq!(Profile::parse(&written).as_ref(), Ok(&profile)),
        // With spaces between its numbers, a long profile may become too long.
        Err(error) => assert!(text.len() > 100_000, "{error}"),
    }
    for variant in profile.devices.iter().flat_map(|device| &device.variants) {
        check_predictions(variant);
    }
    check_cuts(&profile);
}

/// A pair may solve any product by what the profile has of pieces.
fn check_cuts(profile: &Profile) {
    let pair = MeasuredPair::of_tables(&profile.pieces);
    for (product, tokens) in CutProduct::ALL.into_iter().zip([1, 7, 64, 1, 256, 3]) {
        let shape = CutShape {
            product,
            rows: 640,
            depth: 64,
            matrices: 1,
            unit_rows: 1,
            row_bytes: 64.0,
        };
        let rules = CutRules {
            static_tokens: &[tokens],
            row_step: 16,
            home: Side::Second,
            hand_over_us: 0.0,
        };
        if let Ok(found) = solve(&pair, &shape, tokens, rules) {
            assert_eq!(found.cut.check(shape.rows, tokens, 16), Ok(()));
            assert!(found.latency_us.is_finite() && found.latency_us > 0.0);
        }
    }
}

fn check_predictions(variant: &VariantProfile) {
    let term = |factor, tokens, context| Term {
        factor,
        tokens,
        context,
    };
    let work = Work {
        flops: vec![term(12_384, 1, 1), term(2_000_000, 1, 0)],
        bytes: vec![term(12_288, 1, 0), term(4096, 0, 1), term(1_000_000, 0, 0)],
    };
    let peaks = DevicePeaks::new(RawDevicePeaks {
        flops_per_sec: 1e12,
        bytes_per_sec: 100e9,
    })
    .expect("peaks of a device");
    let table = variant.table.clone();
    let calibrated = Calibrated::fit(table, variant.context_step, &work, peaks);
    for (tokens, context) in [(0, 0), (1, 1), (65, 300), (300, 5000), (u32::MAX, u32::MAX)] {
        let found = calibrated.latency_us(&work, CallShape { tokens, context });
        assert!(found > 0.0, "{found} for {tokens}, {context}");
    }
}
