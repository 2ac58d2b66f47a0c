//! Metrics of two devices that run every kernel together: what said how they share products, how long one waited for the
//! other, and whether one was lost.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::metrics::Label;
use heg_runtime::engine::{PairStatus, PartStatus};
use heg_spec::Side;

/// Registers the pair, with the parts of products on a device that is no CPU if one of the two is none.
pub(super) fn register(registry: &mut Registry, pair: &PairStatus) {
    let cuts = Family::<[Label; 1], Counter>::default();
    for (source, count) in [
        ("measured", pair.cuts.measured),
        ("bundle", pair.cuts.written),
        ("online", pair.cuts.online),
    ] {
        cuts.get_or_create(&[("source", source)]).inc_by(count);
    }
    let help = "Products that two devices shared, by what said how";
    registry.register("pair_cuts", help, cuts);
    let lost = Family::<[Label; 1], Gauge>::default();
    for (name, side) in [("first", Side::First), ("second", Side::Second)] {
        let is_lost = pair.lost == Some(side);
        lost.get_or_create(&[("side", name)])
            .set(i64::from(is_lost));
    }
    let help = "Whether a device of the pair was lost, and the other runs everything";
    registry.register("pair_lost", help, lost);
    let hand_overs = counted(pair.hand_overs);
    let help = "Times that one device of the pair waited for the other";
    registry.register("pair_hand_overs", help, hand_overs);
    let help = "Time from the end of a device's part until the other went on, since the start";
    let quantiles = quantiles(pair.median_ns, pair.p99_ns);
    registry.register_with_unit("pair_hand_over", help, Unit::Seconds, quantiles);
    if let Some(parts) = &pair.parts {
        register_parts(registry, parts);
    }
}

fn register_parts(registry: &mut Registry, parts: &PartStatus) {
    let help = "Parts of products that the device beside the CPU computed";
    registry.register("pair_parts", help, counted(parts.count));
    let help = "Passes that the device beside the CPU ran alone";
    registry.register("pair_partner_passes", help, counted(parts.passes));
    let help = "Passes that the CPU ran alone, since that was measured to be faster";
    registry.register("pair_cpu_passes", help, counted(parts.cpu_passes));
    let help = "Time that a part took beside the device's work, since the start";
    let quantiles = quantiles(parts.median_ns, parts.p99_ns);
    registry.register_with_unit("pair_part", help, Unit::Seconds, quantiles);
}

fn counted(count: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(count);
    counter
}

/// Median and 99th percentile, in seconds.
fn quantiles(median_ns: u64, p99_ns: u64) -> Family<[Label; 1], Gauge<f64, AtomicU64>> {
    let quantiles = Family::<[Label; 1], Gauge<f64, AtomicU64>>::default();
    for (quantile, ns) in [("0.5", median_ns), ("0.99", p99_ns)] {
        let gauge = quantiles.get_or_create(&[("quantile", quantile)]);
        gauge.set(ns as f64 / 1e9);
    }
    quantiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use heg_runtime::exec::CutCounts;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn a_pair_is_told_with_its_cuts_and_the_device_that_was_lost() {
        let pair = PairStatus {
            orders: 2,
            hand_overs: 320,
            median_ns: 384,
            p99_ns: 12_288,
            parts: Some(PartStatus {
                device: "AI Boost".to_owned(),
                count: 96,
                passes: 12,
                cpu_passes: 5,
                median_ns: 40_960,
                p99_ns: 163_840,
            }),
            cuts: CutCounts {
                measured: 7,
                written: 300,
                online: 20,
            },
            lost: Some(Side::Second),
            why_lost: None,
            missing: None,
        };
        let mut registry = Registry::with_prefix("heg");
        register(&mut registry, &pair);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        heg_pair_cpu_passes_total 5
        heg_pair_cuts_total{source="bundle"} 300
        heg_pair_cuts_total{source="measured"} 7
        heg_pair_cuts_total{source="online"} 20
        heg_pair_hand_over_seconds{quantile="0.5"} 3.84e-7
        heg_pair_hand_over_seconds{quantile="0.99"} 0.000012288
        heg_pair_hand_overs_total 320
        heg_pair_lost{side="first"} 0
        heg_pair_lost{side="second"} 1
        heg_pair_part_seconds{quantile="0.5"} 0.00004096
        heg_pair_part_seconds{quantile="0.99"} 0.00016384
        heg_pair_partner_passes_total 12
        heg_pair_parts_total 96
        "#);
    }
}
