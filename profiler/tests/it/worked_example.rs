//! MODEL.md against the code: every number of its worked example is recomputed.

use std::collections::BTreeMap;

use heg_profiler::{
    DevicePeaks, RawAnchor, RawAnchors, RawDevicePeaks, Roofline, RooflineAnchor, RooflineAnchors,
};

const PAGE: &str = include_str!("../../MODEL.md");

/// Cells of the rows below the heading `title`, by their first cell; without the header row.
fn table(title: &str) -> BTreeMap<&'static str, Vec<&'static str>> {
    let (_, section) = PAGE
        .split_once(&format!("### {title}\n"))
        .unwrap_or_else(|| panic!("MODEL.md has no `{title}`"));
    let rows: BTreeMap<_, _> = section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            (cells.next().unwrap_or_default(), cells.collect())
        })
        .collect();
    assert!(!rows.is_empty(), "`{title}` has no table");
    rows
}

fn number(cell: &str) -> f64 {
    cell.parse()
        .unwrap_or_else(|_| panic!("`{cell}` is not a number"))
}

#[track_caller]
fn assert_printed(what: &str, printed: &str, computed: f64) {
    let printed = number(printed);
    let close = (printed - computed).abs() <= 1e-12 * computed.abs();
    assert!(
        close,
        "{what}: MODEL.md has {printed:?}, the code {computed:?}"
    );
}

/// The rooflines of the two columns of `Given`: as it is, and clipped.
fn given() -> [Roofline; 2] {
    let rows = table("Given");
    assert_eq!(rows.len(), 7);
    [0, 1].map(|column| {
        let value = |name: &str| number(rows[name][column]);
        let anchor = |intensity: &str, utilisation: &str| {
            RooflineAnchor::new(RawAnchor {
                intensity_flops_per_byte: value(intensity),
                utilisation: value(utilisation),
            })
            .unwrap()
        };
        let peaks = DevicePeaks::new(RawDevicePeaks {
            flops_per_sec: value("P_peak"),
            bytes_per_sec: value("B_peak"),
        });
        let anchors = RooflineAnchors::new(RawAnchors {
            memory_bound: anchor("I_m", "u_m"),
            compute_bound: anchor("I_c", "u_c"),
        });
        Roofline::fit(peaks.unwrap(), anchors.unwrap(), value("T_launch")).unwrap()
    })
}

#[test]
fn the_fit() {
    let rows = table("Fitted");
    assert_eq!(rows.len(), 3);
    for (column, roofline) in given().iter().enumerate() {
        for (name, computed) in [
            ("B_eff", roofline.effective_bytes_per_sec()),
            ("P_eff", roofline.effective_flops_per_sec()),
            ("I*", roofline.knee_flops_per_byte()),
        ] {
            assert_printed(name, rows[name][column], computed);
        }
    }
}

#[test]
fn the_predictions() {
    let [plain, clipped] = given();
    let rows = table("Predicted");
    assert_eq!(rows.len(), 5);
    for (name, cells) in rows {
        let [
            flops,
            bytes,
            intensity,
            latency,
            performance,
            bandwidth,
            utilisation,
        ] = cells[..]
        else {
            panic!("`{name}` has {} cells", cells.len());
        };
        let roofline = if name.ends_with("clipped") {
            &clipped
        } else {
            &plain
        };
        let (flops, bytes) = (number(flops), number(bytes));
        let i = flops / bytes;
        assert_printed(name, intensity, i);
        assert_printed(name, latency, roofline.latency_us(flops, bytes));
        assert_printed(name, performance, roofline.performance_flops_per_sec(i));
        assert_printed(name, bandwidth, roofline.bandwidth_bytes_per_sec(i));
        assert_printed(name, utilisation, roofline.utilisation(i));
    }
}

#[test]
fn the_bound_when_clipped() {
    let [_, clipped] = given();
    let share = clipped.bandwidth_bytes_per_sec(200.0) / clipped.peaks().bytes_per_sec();
    assert_printed("share", "0.3", share);
    assert_printed("u(200)", "0.4", clipped.utilisation(200.0));
    assert!(PAGE.contains("BW(200) / B_peak = 0.3, but u(200) = 0.4"));
}
