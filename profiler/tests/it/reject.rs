//! Each error with its message to the user, from RON, as it reaches a reader of anchors.

use heg_profiler::{AnchorSource, Roofline};

const TAKEN: &str = "(
    peaks: (flops_per_sec: 12e12, bytes_per_sec: 100e9),
    anchors: (
        memory_bound: (intensity_flops_per_byte: 2.0, utilisation: 0.8),
        compute_bound: (intensity_flops_per_byte: 200.0, utilisation: 0.4),
    ),
    launch_us: 50.0,
)";

/// Replaces one part of [`TAKEN`] and expects this message.
#[track_caller]
fn check(part: &str, broken: &str, expected: &str) {
    assert_eq!(TAKEN.matches(part).count(), 1, "`{part}` is not unique");
    let refused = ron::from_str::<Roofline>(&TAKEN.replace(part, broken)).unwrap_err();
    assert_eq!(refused.code.to_string(), expected);
}

#[test]
fn what_is_written_is_read_again() {
    let roofline: Roofline = ron::from_str(TAKEN).unwrap();
    let text = ron::to_string(&roofline).unwrap();
    assert_eq!(
        text,
        "(peaks:(flops_per_sec:12000000000000.0,bytes_per_sec:100000000000.0),\
         anchors:(memory_bound:(intensity_flops_per_byte:2.0,utilisation:0.8),\
         compute_bound:(intensity_flops_per_byte:200.0,utilisation:0.4)),launch_us:50.0)"
    );
    assert_eq!(ron::from_str::<Roofline>(&text).unwrap(), roofline);
    let with_names = ron::ser::PrettyConfig::new().struct_names(true);
    let named = ron::ser::to_string_pretty(&roofline, with_names).unwrap();
    assert_eq!(ron::from_str::<Roofline>(&named).unwrap(), roofline);
}

#[test]
fn sources_are_written_by_name() {
    for (source, text) in [
        (AnchorSource::Measured, "Measured"),
        (AnchorSource::Vendor, "Vendor"),
        (AnchorSource::Spec, "Spec"),
    ] {
        assert_eq!(ron::to_string(&source).unwrap(), text);
        assert_eq!(ron::from_str::<AnchorSource>(text).unwrap(), source);
    }
}

#[test]
fn intensity() {
    for (broken, shown) in [("-2.0", "-2.0"), ("inf", "inf"), ("NaN", "NaN")] {
        check(
            "intensity_flops_per_byte: 2.0",
            &format!("intensity_flops_per_byte: {broken}"),
            &format!(
                "the anchor's intensity in FLOP/B is `{shown}`, expected a finite number from 0"
            ),
        );
    }
}

#[test]
fn utilisation() {
    for (broken, shown) in [("0", "0.0"), ("1.25", "1.25"), ("NaN", "NaN")] {
        check(
            "utilisation: 0.4",
            &format!("utilisation: {broken}"),
            &format!(
                "the anchor's utilisation is `{shown}`, expected a number above 0 and up to 1"
            ),
        );
    }
}

#[test]
fn anchor_order() {
    check(
        "intensity_flops_per_byte: 2.0",
        "intensity_flops_per_byte: 200.0",
        "the memory-bound anchor's intensity in FLOP/B is `200.0`, expected less than the \
         compute-bound anchor's: `200.0`",
    );
}

#[test]
fn peak() {
    check(
        "flops_per_sec: 12e12",
        "flops_per_sec: 0.0",
        "the peak compute in FLOP/s is `0.0`, expected a finite number above 0",
    );
    check(
        "bytes_per_sec: 100e9",
        "bytes_per_sec: inf",
        "the peak bandwidth in B/s is `inf`, expected a finite number above 0",
    );
}

#[test]
fn effective() {
    check(
        "bytes_per_sec: 100e9",
        "bytes_per_sec: 0.1",
        "the effective bandwidth in B/s is `0.08000000000000002`, expected at least 1",
    );
    check(
        "flops_per_sec: 12e12",
        "flops_per_sec: 0.5",
        "the effective compute in FLOP/s is `0.5`, expected at least 1",
    );
}

#[test]
fn launch() {
    check(
        "launch_us: 50.0",
        "launch_us: -1.0",
        "the launch overhead in µs is `-1.0`, expected a finite number from 0",
    );
}

#[test]
fn unknown_fields() {
    let refused = |part, broken, owner, known| {
        let expected = format!("Unexpected field named `x` in `{owner}`, expected {known} instead");
        check(part, broken, &expected);
    };
    refused(
        "launch_us: 50.0",
        "launch_us: 50.0, x: 1",
        "Roofline",
        "one of `peaks`, `anchors`, or `launch_us`",
    );
    refused(
        "utilisation: 0.4",
        "utilisation: 0.4, x: 1",
        "Anchor",
        "either `intensity_flops_per_byte` or `utilisation`",
    );
    refused(
        "bytes_per_sec: 100e9",
        "bytes_per_sec: 100e9, x: 1",
        "DevicePeaks",
        "either `flops_per_sec` or `bytes_per_sec`",
    );
    refused(
        "memory_bound:",
        "x: 1, memory_bound:",
        "Anchors",
        "either `memory_bound` or `compute_bound`",
    );
}
