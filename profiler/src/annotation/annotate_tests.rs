//! Documents made from the shipped SoC files: their size, their entries, their rooflines.

use heg_artifacts::manifest::{Binding, ShapeClass};
use heg_spec::{DeviceClass, shipped};

use super::super::llama_3b;
use super::*;

fn intel() -> Vec<Soc> {
    [
        "core-ultra-5-125h",
        "core-ultra-7-258v",
        "core-ultra-x7-358h",
    ]
    .map(|name| shipped::soc(name).unwrap())
    .to_vec()
}

#[test]
fn three_platforms_are_a_small_document_that_reads_back() {
    let manifest = llama_3b::manifest();
    let vendor = llama_3b::vendor_tables(&[(3720, 1.0), (4000, 0.5), (5010, 0.25)]);
    assert_eq!(vendor.len(), 105);
    let made = || annotate(&manifest, &intel(), &vendor, SweepLimits::default()).unwrap();
    let text = made().to_text().unwrap();
    assert!(text.len() < 50_000, "{} bytes", text.len());
    assert_eq!(text, made().to_text().unwrap());
    assert_eq!(Annotations::parse(&text).unwrap(), made());
}

#[test]
fn tables_go_to_their_platform() {
    let manifest = llama_3b::manifest();
    let vendor = llama_3b::vendor_tables(&[(4000, 0.5)]);
    let annotations = annotate(&manifest, &intel(), &vendor, SweepLimits::default()).unwrap();
    let entries = annotations.socs.iter().map(|soc| {
        let devices = soc.devices.iter().map(|device| device.variants.len());
        devices.collect::<Vec<_>>()
    });
    assert_eq!(
        entries.collect::<Vec<_>>(),
        [[0, 0, 0], [35, 0, 0], [0, 0, 0]]
    );
    let npu = annotations.socs[1].device(DeviceClass::Npu).unwrap();
    let shape = ShapeClass::Static { tokens: 256 };
    let entry = npu.variant("ffn", shape, Binding::Input).unwrap();
    assert_eq!(entry.source, AnchorSource::Vendor);
}

#[test]
fn a_data_sheet_gives_the_ideal_roofline() {
    let soc = of_data_sheet(&intel()[0]).unwrap();
    let npu = soc.device(DeviceClass::Npu).unwrap();
    let roofline = npu.spec.unwrap();
    assert_eq!(roofline.effective_bytes_per_sec(), 89.6e9);
    assert!((roofline.effective_flops_per_sec() / 5.32e12 - 1.0).abs() < 1e-12);
    let host = of_data_sheet(&shipped::soc("host-cpu").unwrap()).unwrap();
    assert_eq!(host.devices[0].spec, None);
}

#[test]
fn anchors_of_a_soc_file_are_taken() {
    let mut soc = intel().swap_remove(0);
    let anchor = |intensity_flops_per_byte, utilisation| soc::Anchor {
        intensity_flops_per_byte,
        utilisation,
    };
    soc.devices[1].anchors = Some(soc::Anchors {
        memory_bound: anchor(2.0, 0.8),
        compute_bound: anchor(200.0, 0.3),
        launch_us: 40.0,
        source: "a test".to_owned(),
    });
    let roofline = of_data_sheet(&soc).unwrap().devices[1].spec.unwrap();
    assert_eq!(roofline.effective_bytes_per_sec(), 0.8 * 89.6e9);
    assert_eq!(roofline.effective_flops_per_sec(), 0.3 * 89.6e9 * 200.0);
    assert_eq!(roofline.launch_us(), 40.0);
    soc.devices[1].peaks.as_mut().unwrap().flops_per_sec = f64::NAN;
    let refused = of_data_sheet(&soc).unwrap_err().to_string();
    assert_eq!(
        refused,
        "the peak compute in FLOP/s is `NaN`, expected a finite number above 0"
    );
}
