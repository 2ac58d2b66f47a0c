//! Estimates of real blobs, interpolation between their rows, and invalid tables.

use proptest::prelude::*;

use super::*;
use crate::vendor::tests::{MATMUL_3720, MATMUL_4000, estimate};

/// Checks the invariants of an accepted estimate, whatever its source.
pub(in crate::vendor) fn holds_promises(estimate: &PerfMetrics) {
    let ticks = estimate.raw().ticks;
    let us = |ticks: u64| ticks as f64 * 1000.0 / f64::from(estimate.raw().timer_khz);
    let all = || ticks.as_flattened().iter().copied();
    let shortest = us(all().min().unwrap()) * (1.0 - 1e-12);
    let longest = us(all().max().unwrap()) * (1.0 + 1e-12);
    assert!(shortest > 0.0 && longest.is_finite());
    let values = [
        0.0,
        1.0,
        725.5,
        1301.0,
        2150.0,
        1e9,
        f64::MAX,
        f64::INFINITY,
    ];
    for (mhz, mb_per_sec) in values.iter().flat_map(|a| values.map(|b| (*a, b))) {
        let found = estimate.latency_us(mhz, mb_per_sec);
        assert!((shortest..=longest).contains(&found), "{found} µs");
    }
    let text = ron::to_string(estimate).unwrap();
    assert_eq!(ron::from_str::<PerfMetrics>(&text).unwrap(), *estimate);
}

/// The numbers were printed by an independent reader, a Python script that unpacks the section with
/// `struct`; the timers are npu_compiler's.
#[test]
fn estimates_of_real_blobs() {
    let bandwidth_mb_per_sec = Axis {
        base: 2000,
        step: 100,
    };
    let scalability = [[0.0, 0.2, 0.4, 0.6, 0.8]; 5];
    assert_eq!(
        *estimate(MATMUL_3720).raw(),
        RawPerfMetrics {
            timer_khz: 38_400,
            frequency_mhz: Axis {
                base: 700,
                step: 150
            },
            bandwidth_mb_per_sec,
            ticks: [[309; 5], [255; 5], [216; 5], [188; 5], [166; 5]],
            scalability,
            activity_factor: 0.006_260_623,
        }
    );
    assert_eq!(
        *estimate(MATMUL_4000).raw(),
        RawPerfMetrics {
            timer_khz: 19_200,
            frequency_mhz: Axis {
                base: 900,
                step: 200
            },
            bandwidth_mb_per_sec,
            ticks: [[361; 5], [295; 5], [249; 5], [216; 5], [191; 5]],
            scalability,
            activity_factor: 0.001_044_731_9,
        }
    );
}

#[test]
fn latencies_have_the_unit_of_the_platforms_timer() {
    let show = |blob| {
        let latencies = estimate(blob).latencies_us();
        latencies.map(|(mhz, us)| format!("{mhz} MHz {us:.3} µs"))
    };
    assert_eq!(
        show(MATMUL_3720),
        [
            "700 MHz 8.047 µs",
            "850 MHz 6.641 µs",
            "1000 MHz 5.625 µs",
            "1150 MHz 4.896 µs",
            "1300 MHz 4.323 µs"
        ]
    );
    assert_eq!(
        show(MATMUL_4000),
        [
            "900 MHz 18.802 µs",
            "1100 MHz 15.365 µs",
            "1300 MHz 12.969 µs",
            "1500 MHz 11.250 µs",
            "1700 MHz 9.948 µs"
        ]
    );
}

/// Ticks of a real blob that is too large to keep: the feed-forward kernel of Llama-3.2-3B for 256 tokens on
/// 3720, 15.7 ms at 1300 MHz (DESIGN §4.2).
fn ffn() -> PerfMetrics {
    let ticks = [1_121_290, 923_415, 784_903, 682_524, 603_771];
    PerfMetrics::new(RawPerfMetrics {
        ticks: ticks.map(|ticks| [ticks; STEPS]),
        ..*estimate(MATMUL_3720).raw()
    })
    .unwrap()
}

#[test]
fn between_rows_the_cycles_stay() {
    let ffn = ffn();
    assert_eq!(ffn.latency_us(1300.0, 2000.0).round(), 15_723.0);
    let cycles = 603_771.0 / 38.4 * 1300.0;
    for mhz in [700.0, 701.0, 774.5, 925.0, 1149.0, 1225.0, 1299.0] {
        let found = ffn.latency_us(mhz, 2150.0);
        // Not closer: the blob's ticks are truncated to integers.
        assert!((found * mhz / cycles - 1.0).abs() < 3e-6, "{mhz} MHz");
    }
}

#[test]
fn rows_and_columns_are_met_and_edges_kept() {
    let ticks = [9000, 8000, 7000, 6000, 5000].map(|row| [0, 100, 200, 300, 400].map(|c| row - c));
    let raw = RawPerfMetrics {
        ticks,
        ..*ffn().raw()
    };
    let estimate = PerfMetrics::new(raw).unwrap();
    holds_promises(&estimate);
    let us = |ticks: u64| ticks as f64 * 1000.0 / 38_400.0;
    for (row, mhz) in estimate.frequencies_mhz().into_iter().enumerate() {
        let bandwidths = estimate.bandwidths_mb_per_sec();
        for (column, mb_per_sec) in bandwidths.into_iter().enumerate() {
            let found = estimate.latency_us(mhz.into(), mb_per_sec.into());
            assert_eq!(found, us(ticks[row][column]));
        }
    }
    assert_eq!(estimate.latency_us(0.0, 0.0), us(9000));
    assert_eq!(estimate.latency_us(1e9, f64::INFINITY), us(4600));
    assert_eq!(estimate.latency_us(700.0, 2050.0), us(8950));
    // 775 MHz: the mean of 9000 · 700 and 8000 · 850 cycles, over the clock.
    let expected = (9000.0 * 700.0 + 8000.0 * 850.0) / 2.0 / 775.0 * 1000.0 / 38_400.0;
    assert!((estimate.latency_us(775.0, 2000.0) - expected).abs() < 1e-9);
    for wrong in [-1.0, f64::NAN, f64::NEG_INFINITY] {
        assert!(estimate.latency_us(wrong, 2000.0).is_nan());
        assert!(estimate.latency_us(700.0, wrong).is_nan());
    }
}

const RON: &str = "(timer_khz:19200,frequency_mhz:(base:900,step:200),\
    bandwidth_mb_per_sec:(base:2000,step:100),ticks:((361,361,361,361,361),(295,295,295,295,295),\
    (249,249,249,249,249),(216,216,216,216,216),(191,191,191,191,191)),\
    scalability:((0.0,0.2,0.4,0.6,0.8),(0.0,0.2,0.4,0.6,0.8),(0.0,0.2,0.4,0.6,0.8),\
    (0.0,0.2,0.4,0.6,0.8),(0.0,0.2,0.4,0.6,0.8)),activity_factor:0.0010447319)";

#[test]
fn an_estimate_is_one_line_of_ron() {
    let estimate = estimate(MATMUL_4000);
    assert_eq!(ron::to_string(&estimate).unwrap(), RON);
    assert_eq!(ron::from_str::<PerfMetrics>(RON).unwrap(), estimate);
}

#[test]
fn what_is_stored_is_checked_again() {
    let axis = "expected both from `1` and `5` values up to `100000000`";
    for (part, broken, expected) in [
        (
            "19200",
            "0",
            "timer has `0` kHz, expected `1` to `100000000`".to_owned(),
        ),
        (
            "900,",
            "0,",
            format!("clock in MHz has base `0` and step `200`, {axis}"),
        ),
        (
            "step:200",
            "step:0",
            format!("clock in MHz has base `900` and step `0`, {axis}"),
        ),
        (
            "step:100",
            "step:4294967295",
            format!("bandwidth in MB/s has base `2000` and step `4294967295`, {axis}"),
        ),
    ] {
        check(part, broken, &format!("the estimate's {expected}"));
    }
    for (part, broken, expected) in [
        ("(361,", "(0,", "`0` ticks, expected `1` to `1099511627776`"),
        (
            "(361,",
            "(1099511627777,",
            "`1099511627777` ticks, expected `1` to `1099511627776`",
        ),
        (
            "0.8)",
            "1.5)",
            "scalability `1.5`, expected a number from 0 to 1",
        ),
        (
            "0.8)",
            "NaN)",
            "scalability `NaN`, expected a number from 0 to 1",
        ),
        (
            "0.0010447319",
            "inf",
            "activity factor `inf`, expected a finite number from 0",
        ),
        (
            "0.0010447319",
            "-0.5",
            "activity factor `-0.5`, expected a finite number from 0",
        ),
    ] {
        check(part, broken, &format!("the estimate has {expected}"));
    }
}

/// Replaces one part of [`RON`] and expects this message.
#[track_caller]
fn check(part: &str, broken: &str, expected: &str) {
    assert!(RON.contains(part), "`{part}` is not there");
    let refused = ron::from_str::<PerfMetrics>(&RON.replacen(part, broken, 1));
    assert_eq!(refused.unwrap_err().code.to_string(), expected);
}

proptest! {
    /// Large shifts give tables that are accepted, small ones tables that are refused.
    #[test]
    fn any_table_is_refused_or_holds_its_promises(
        (timer_khz, axes) in any::<(u32, [(u32, u32); 2])>(),
        ticks: [[u64; STEPS]; STEPS],
        scalability in prop::array::uniform5(prop::array::uniform5(0.0_f32..=1.0)),
        activity_factor in prop::num::f32::POSITIVE,
        (tick_shift, shift) in (0_u32..64, 0_u32..32),
    ) {
        let [frequency_mhz, bandwidth_mb_per_sec] = axes.map(|(base, step)| Axis {
            base: base >> shift,
            step: step >> shift,
        });
        let estimate = PerfMetrics::new(RawPerfMetrics {
            timer_khz: timer_khz >> shift,
            frequency_mhz,
            bandwidth_mb_per_sec,
            ticks: ticks.map(|row| row.map(|ticks| ticks >> tick_shift)),
            scalability,
            activity_factor,
        });
        if let Ok(estimate) = estimate {
            holds_promises(&estimate);
        }
    }
}
