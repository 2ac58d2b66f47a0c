//! Blobs are chosen by what the driver says that it reads, before any is fetched.

use heg_tests::soft_npu::{SoftNpu, soft_npu_or_skip};
use serde_json::Value;

use super::{bundle, heg, heg_in};

/// The slice that a machine with such a driver takes of the bundle's layout, and the reason if it is not the best.
fn taken(world: &SoftNpu, layout: &str, name: &str, settings: &[(&str, &str)]) -> String {
    let arguments = ["import", layout, "--as", name, "--allow-unsigned", "--json"];
    let ran = heg_in(world, bundle(), &arguments, settings);
    assert_eq!(ran.status, Some(0), "{}{}", ran.out, ran.error);
    let last = ran.out.lines().next_back().unwrap();
    let report: Value = serde_json::from_str(last).unwrap();
    format!("{} {}", report["slice"], report["slice_reason"])
}

#[test]
fn a_pull_takes_the_blobs_that_the_driver_reads() {
    if !soft_npu_or_skip("blobs that the driver reads") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let layout = format!("oci:{}", folder.path().join("layout").display());
    let export = ["export", bundle().to_str().unwrap(), "--to", &layout];
    let exported = heg(bundle(), &export, &[]);
    assert_eq!(exported.status, Some(0), "{}", exported.error);

    let world = SoftNpu::new();
    let mut told = Vec::new();
    for (name, settings) in [
        ("older", &[("PLATFORM", "4000"), ("ELF", "1.1.0")][..]),
        ("newer", &[("PLATFORM", "4000"), ("ELF", "1.2.5")]),
        ("silent", &[("PLATFORM", "4000"), ("GRAPH", "1.5")]),
        ("other", &[("PLATFORM", "3720"), ("ELF", "1.2.5")]),
        ("unknown", &[("DEVICE_ID", "1")]),
        ("absent", &[("WITHOUT", "device")]),
    ] {
        told.push(format!(
            "{name}: {}",
            taken(&world, &layout, name, settings)
        ));
    }
    insta::assert_snapshot!(told.join("\n"), @r#"
    older: "cpu" "the blobs of `npu-4000` need a driver for ELF 1.2.2, and this machine's reads 1.1.0"
    newer: "npu-4000" null
    silent: "npu-4000" null
    other: "npu-3720" null
    unknown: "cpu" null
    absent: "cpu" null
    "#);
}
