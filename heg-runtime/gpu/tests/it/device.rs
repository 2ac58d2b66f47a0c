//! The device of the tests: found, probed, and told from one that is not there.

use heg_gpu::{Fidelity, GpuDevice, GpuError, GpuOptions, Means, Treatment};
use std::io::Write;

/// The device, with validation; `None`, after saying so, where there is none.
pub(crate) fn device_or_skip(test: &str) -> Option<GpuDevice> {
    device_of(test, GpuOptions::from_environment().treatment)
}

/// The same, taken for any kind.
pub(crate) fn device_of(test: &str, treatment: Treatment) -> Option<GpuDevice> {
    let options = GpuOptions {
        validation: true,
        treatment,
        ..GpuOptions::from_environment()
    };
    match GpuDevice::open(&options) {
        Ok(device) => Some(device),
        Err(error @ (GpuError::NoLoader { .. } | GpuError::NoDevice { .. })) => {
            let required = std::env::var_os("HEG_REQUIRE_GPU").is_some();
            assert!(!required, "{test}: {error}");
            skipped(&format!("{test}: {error}"));
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

/// As `heg_tests::skipped`, which this crate cannot depend on.
fn skipped(what: &str) {
    println!("skipped: {what}");
    let Some(path) = std::env::var_os("HEG_SKIPPED") else {
        return;
    };
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{what}\n").as_bytes()));
    written.unwrap();
}

#[test]
fn a_probe_finds_what_the_driver_does() {
    let Some(device) = device_or_skip("a_probe_finds_what_the_driver_does") else {
        return;
    };
    let (info, probe) = (device.info(), device.probe());
    println!("{info:?}\n{probe:?}\n{:?}", device.sharing());
    let wrong = |name: &str| {
        let mut all = probe.wrong.iter();
        all.find(|(found, _)| *found == name)
            .map(|(_, wrong)| *wrong)
    };
    for exact in [
        "fma by steps",
        "a / b by steps",
        "root by steps",
        "a * b + c",
        "int to float",
    ] {
        assert_eq!(wrong(exact), Some(0), "{exact}");
    }
    if info.name.contains("llvmpipe") {
        // What this driver is for: it rounds a fused multiply-add twice, so that the steps stay tested.
        assert_eq!(probe.arithmetic.fma, Means::Steps);
        assert_eq!(probe.arithmetic.division, Means::Instruction);
        assert_eq!(device.fidelity(), &Fidelity::Equal);
    }
    assert_eq!(device.complaints(), [""; 0]);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    if device_or_skip("a_device_that_is_not_there_is_named").is_none() {
        return;
    }
    let options = GpuOptions {
        name: Some("no such device".to_owned()),
        ..GpuOptions::default()
    };
    let error = GpuDevice::open(&options).err().unwrap().to_string();
    assert!(error.contains("`no such device`: found `"), "{error}");
}
