//! The device of the tests: found, probed, and told from one that is not there.

use heg_gpu::{
    CacheMemory, Fidelity, GpuDevice, GpuError, GpuFindings, GpuOptions, Means, Treatment,
};
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

/// Both ways to memory that host and device share are tried, and bits are the same (`attention`).
#[test]
fn keys_and_values_are_where_both_work_on_them() {
    let test = "keys_and_values_are_where_both_work_on_them";
    let Some(found) = device_of(test, Treatment::Own) else {
        return;
    };
    if !matches!(found.info().kind, "integrated" | "software") {
        assert_eq!(found.cache_memory(), CacheMemory::Copied);
        return;
    }
    assert_ne!(found.cache_memory(), CacheMemory::Copied);
    let discrete = device_of(test, Treatment::Discrete).unwrap();
    assert_eq!(discrete.cache_memory(), CacheMemory::Copied);
    assert!(discrete.shared_memory(4096).unwrap().is_none());
    for caches in [CacheMemory::Imported, CacheMemory::Shared] {
        let known = GpuFindings {
            caches: Some(caches),
            ..GpuFindings::default()
        };
        let options = GpuOptions {
            validation: true,
            treatment: Treatment::Own,
            known,
            ..GpuOptions::from_environment()
        };
        let device = GpuDevice::open(&options).unwrap();
        let memory = device.shared_memory(10_000).unwrap().unwrap();
        assert!(memory.len() >= 10_000 && memory.is_on(&device) && !memory.is_on(&discrete));
        memory.region().write(9_000, &[1, 2, 3]).unwrap();
        let mut read = [0; 3];
        memory.region().read(9_000, &mut read).unwrap();
        assert_eq!(read, [1, 2, 3]);
        assert_eq!(device.complaints(), [""; 0]);
    }
}
