//! Documents that read back, and the messages about refused ones.

use super::*;
use crate::annotation::{RawContention, RawDevicePower, Regime};

const TEXT: &str = "(
    revision: 1,
    socs: [(
        name: \"laptop\",
        devices: [(
            class: Npu,
            openvino: \"NPU\",
            npu: (platform: (3720), frequency_mhz: 1300),
            peaks: (flops_per_sec: 5e12, bytes_per_sec: 90e9),
            power: (prefill_watts: 10, decode_watts: 9.5),
            variants: [(
                kernel: \"ffn\",
                shape: Static(tokens: 256),
                binding: Input,
                source: Vendor,
                prediction: Vendor([(700, 29200), (1300, 15723.4)]),
            )],
        )],
        contention: [(
            device: Igpu,
            regime: MemoryBound,
            neighbour: Npu,
            neighbour_regime: ComputeBound,
            slowdown: 1.3,
            source: Measured,
        )],
    )],
)";

/// The message for [`TEXT`] with one part replaced.
#[track_caller]
fn refused(part: &str, broken: &str) -> String {
    assert_eq!(TEXT.matches(part).count(), 1, "`{part}` is not unique");
    let error = Annotations::parse(&TEXT.replace(part, broken)).unwrap_err();
    format!("{broken}\n    {error}\n")
}

#[test]
fn what_is_written_is_read_again() {
    let document = Annotations::parse(TEXT).unwrap();
    let text = document.to_text().unwrap();
    assert_eq!(Annotations::parse(&text).unwrap(), document);
    assert!(!text.contains('\n') && !text.contains(' '), "{text}");
    let npu = document.soc("laptop").unwrap().device(DeviceClass::Npu);
    let shape = ShapeClass::Static { tokens: 256 };
    assert!(npu.unwrap().variant("ffn", shape, Binding::Input).is_some());
    assert!(
        npu.unwrap()
            .variant("ffn", shape, Binding::Constant)
            .is_none()
    );
}

#[test]
fn wrong_parts() {
    let messages: String = [
        ("1300, 15723.4", "1300, 0"),
        ("(700, 29200)", "(1400, 29200)"),
        ("decode_watts: 9.5", "decode_watts: NaN"),
        ("slowdown: 1.3", "slowdown: -1"),
        ("flops_per_sec: 5e12", "flops_per_sec: inf"),
        ("kernel: \"ffn\"", "kernel: \"ffn\", speed: 1"),
        ("shape: Static(tokens: 256)", "shape: Square"),
        ("revision: 1", "revision: 0"),
        ("revision: 1", "revision: 2"),
        (
            "revision: 1",
            "revision: 2, weather: (Sunny(wind: 3), [None])",
        ),
    ]
    .map(|(part, broken)| refused(part, broken))
    .concat();
    insta::assert_snapshot!(messages);
}

#[test]
fn length_and_depth_are_bounded() {
    let long = " ".repeat(ANNOTATIONS_BYTES_MAX + 1);
    assert_eq!(
        Annotations::parse(&long).unwrap_err().to_string(),
        "the annotations are `1048577` bytes long, expected up to `1048576`"
    );
    let deep = "[".repeat(100_000);
    assert!(matches!(
        Annotations::parse(&deep),
        Err(AnnotationError::Syntax { .. })
    ));
}

#[test]
fn nothing_is_described_twice() {
    let twice = |change: fn(&mut Annotations)| {
        let mut document = Annotations::parse(TEXT).unwrap();
        change(&mut document);
        let refused = document.to_text().unwrap_err();
        refused.to_string()
    };
    assert_eq!(
        twice(|document| document.socs.push(document.socs[0].clone())),
        "the annotations describe SoC `laptop` more than once"
    );
    assert_eq!(
        twice(|document| {
            let devices = &mut document.socs[0].devices;
            devices.push(devices[0].clone());
        }),
        "the annotations describe device `Npu NPU` more than once"
    );
    assert_eq!(
        twice(|document| {
            let variants = &mut document.socs[0].devices[0].variants;
            variants.push(variants[0].clone());
        }),
        "the annotations describe variant `ffn Static { tokens: 256 } Input` more than once"
    );
    assert_eq!(
        twice(|document| {
            let contention = &mut document.socs[0].contention;
            contention.push(contention[0]);
        }),
        "the annotations describe contention `(Igpu, MemoryBound) beside (Npu, ComputeBound)` more than once"
    );
}

#[test]
fn measurements_come_over_estimates() {
    let mut document = Annotations::parse(TEXT).unwrap();
    let mut measured = document.clone();
    let device = &mut measured.socs[0].devices[0];
    device.npu = None;
    device.peaks = None;
    device.power = Some(
        DevicePower::new(RawDevicePower {
            prefill_watts: 8.0,
            decode_watts: 7.0,
        })
        .unwrap(),
    );
    device.variants[0].source = AnchorSource::Measured;
    let mut other = device.variants[0].clone();
    other.kernel = "qkv".to_owned();
    device.variants.push(other);
    measured.socs[0].contention = vec![
        Contention::new(RawContention {
            device: DeviceClass::Igpu,
            regime: Regime::MemoryBound,
            neighbour: DeviceClass::Npu,
            neighbour_regime: Regime::ComputeBound,
            slowdown: 1.5,
            source: AnchorSource::Measured,
        })
        .unwrap(),
    ];
    let mut elsewhere = measured.socs[0].clone();
    elsewhere.name = "desktop".to_owned();
    measured.socs.push(elsewhere);
    document.overlay(measured);

    let device = &document.socs[0].devices[0];
    assert!(device.npu.is_some() && device.peaks.is_some());
    assert_eq!(device.power.unwrap().decode_watts(), 7.0);
    let entries = device
        .variants
        .iter()
        .map(|v| (v.kernel.as_str(), v.source));
    assert_eq!(
        entries.collect::<Vec<_>>(),
        [
            ("ffn", AnchorSource::Measured),
            ("qkv", AnchorSource::Measured)
        ]
    );
    let slowdowns = document.socs[0].contention.iter().map(Contention::slowdown);
    assert_eq!(slowdowns.collect::<Vec<_>>(), [1.5]);
    assert!(document.soc("desktop").is_some());
}
