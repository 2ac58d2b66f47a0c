//! SoC files: the devices of a machine and the role each plays.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::SpecError;
use crate::source::{Problems, Source};

/// A machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Soc {
    /// Name, e.g. `host-cpu`.
    pub name: String,
    /// Its devices.
    pub devices: Vec<Device>,
}

/// One device, as the runtime opens it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Which kernel variants it runs.
    pub class: DeviceClass,
    /// OpenVINO device, e.g. `CPU`, `GPU.0`, `NPU`.
    pub openvino: String,
    /// OpenVINO properties kernels are compiled with.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
}

/// Classes of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum DeviceClass {
    /// The CPU cores.
    Cpu,
    /// The integrated GPU.
    Igpu,
    /// The neural processing unit.
    Npu,
}

impl Soc {
    /// Parses and checks a SoC file.
    pub fn parse(source: Source<'_>) -> Result<Self, SpecError> {
        let soc: Self = source.parse()?;
        let mut problems = Problems::new(source);
        if soc.devices.is_empty() {
            problems.push("devices", "expected at least one device".to_owned());
        }
        problems.finish(soc)
    }
}
