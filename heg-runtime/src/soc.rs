//! Which device of a SoC plays which role.

use heg_artifacts::manifest::DeviceClass;
use heg_spec::soc::{Device, DeviceClass as SpecClass, Soc};

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
