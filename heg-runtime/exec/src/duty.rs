//! The part of a model that an executor runs: all of it, or the part that belongs to one lane.

use heg_spec::DeviceClass;

/// The part of a model's calls that an executor runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Duty {
    /// Every call, on the best device for each.
    #[default]
    All,
    /// Calls that the NPU's static kernels admit; others are refused.
    Static,
    /// Every call, on the devices with dynamic kernels.
    Dynamic,
}

impl Duty {
    /// Roles of the devices that run it.
    pub fn roles(self) -> &'static [DeviceClass] {
        match self {
            Self::All => &[DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu],
            Self::Static => &[DeviceClass::Npu],
            Self::Dynamic => &[DeviceClass::Igpu, DeviceClass::Cpu],
        }
    }

    /// Whether a missing kernel is an error at load time, rather than when it is called.
    pub fn is_every_call(self) -> bool {
        self != Self::Static
    }
}
