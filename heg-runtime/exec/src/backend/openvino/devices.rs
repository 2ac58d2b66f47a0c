//! Reads the properties of OpenVINO's devices; nothing else does.
//!
//! A property that a plugin does not have counts as unknown, and a device without a name as missing.

use heg_artifacts::ElfVersion;
use heg_openvino::Core;
use heg_spec::soc::Device;
use heg_spec::{DeviceClass, NpuPlatform};

use crate::error::last_line;
use crate::ladder::{DeviceFacts, NpuFacts};

/// The property that every device has which is there.
pub(super) const NAME: &str = "FULL_DEVICE_NAME";

/// Adds to the facts of a role what OpenVINO reports of its device.
pub(super) fn read(core: &Core, device: &Device, facts: &mut DeviceFacts) {
    let role = facts.role;
    let name = &device.openvino;
    let known = |property| {
        let value = core.device_property(name, property).ok()?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let (full_name, missing) = match core.device_property(name, NAME) {
        Ok(full_name) => (full_name, None),
        Err(error) => (String::new(), Some(missing(core, name, &error))),
    };
    let is_npu = is_npu(name);
    let driver = ["NPU_DRIVER_VERSION", "GPU_DRIVER_VERSION"];
    let npu = || NpuFacts {
        // `NPU_PLATFORM` is what is compiled for, which a user may have set; the architecture is what is there.
        platform: known("DEVICE_ARCHITECTURE").and_then(|text| platform(&text)),
        tiles: known("NPU_MAX_TILES").and_then(|text| text.parse().ok()),
        stepping: known("NPU_STEPPING").filter(|text| !text.starts_with('-')),
        compiler: known("NPU_COMPILER_VERSION").and_then(|text| compiler(&text)),
        elf: core
            .npu_driver()
            .and_then(|driver| driver.elf)
            .map(ElfVersion::new),
    };
    let usable = missing.is_none();
    facts.full_name = full_name;
    facts.driver = driver
        .iter()
        .filter(|_| usable && role != DeviceClass::Cpu)
        .find_map(|name| known(name));
    facts.npu = (is_npu && usable).then(npu);
    facts.missing = missing;
}

fn is_npu(name: &str) -> bool {
    DeviceClass::of_openvino(name) == Some(DeviceClass::Npu)
}

/// A plugin without devices knows no name of one, and says so as if it knew no such property. The NPU's keeps the cause to
/// itself: no loader, no driver, or one that it cannot start. So what the machine has of these is named.
fn missing(core: &Core, name: &str, error: &heg_openvino::OpenvinoError) -> String {
    let said = last_line(error);
    if !said.starts_with("Unsupported configuration key") {
        return said;
    }
    let none = "OpenVINO finds no such device";
    match is_npu(name) {
        true => format!("{none}: {}", core.npu_files()),
        false => none.to_owned(),
    }
}

/// `3720`, also where something stands before it.
fn platform(text: &str) -> Option<NpuPlatform> {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.parse().ok().map(NpuPlatform::new)
}

/// The plugin gives `major · 2¹⁶ + minor` as one number. A driver without its compiler package leaves it zero.
fn compiler(text: &str) -> Option<String> {
    let number: u32 = text.parse().ok().filter(|number| *number != 0)?;
    Some(format!("{}.{}", number >> 16, number & 0xffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_the_plugin_writes_them() {
        assert_eq!(platform("3720"), Some(NpuPlatform::NPU3720));
        assert_eq!(platform("NPU4000"), Some(NpuPlatform::NPU4000));
        assert_eq!(platform("AUTO_DETECT"), None);
        assert_eq!(compiler("524292").as_deref(), Some("8.4"));
        assert_eq!(compiler("8.4"), None);
        assert_eq!(compiler("0"), None);
    }
}
