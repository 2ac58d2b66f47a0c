//! SoC files: where they are found, and which device plays which role.

use std::path::PathBuf;

use heg_artifacts::manifest::DeviceClass;
use heg_spec::soc::{Device, DeviceClass as SpecClass, Soc};
use heg_spec::{Source, SpecError, shipped};

use crate::error::RuntimeError;

/// A SoC by shipped name, or by a path that ends in `.ron`.
pub fn read_soc(name: &str) -> Result<Soc, RuntimeError> {
    if !name.ends_with(".ron") {
        return Ok(shipped::soc(name)?);
    }
    let text = std::fs::read_to_string(name).map_err(|source| SpecError::Read {
        path: PathBuf::from(name),
        source,
    })?;
    Ok(Soc::parse(Source {
        file: name,
        text: &text,
    })?)
}

/// The device that plays a role: the first of its class.
pub(crate) fn device_of(soc: &Soc, role: DeviceClass) -> Option<&Device> {
    let mut devices = soc.devices.iter();
    devices.find(|device| role_of(device.class) == role)
}

pub(crate) fn role_of(class: SpecClass) -> DeviceClass {
    match class {
        SpecClass::Cpu => DeviceClass::Cpu,
        SpecClass::Igpu => DeviceClass::Igpu,
        SpecClass::Npu => DeviceClass::Npu,
    }
}
