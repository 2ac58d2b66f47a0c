//! Which part of a model an executor runs: all of it, or what belongs to one lane.

use heg_spec::DeviceClass;

/// What an executor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Duty {
    /// Every call, on the best device for each.
    #[default]
    All,
    /// Calls that the NPU's static kernels admit; others are refused.
    Static,
    /// Every call, on the devices with dynamic kernels.
    Dynamic,
}

impl Duty {
    /// Roles of the devices that do it.
    pub(crate) fn roles(self) -> &'static [DeviceClass] {
        match self {
            Self::All => &[DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu],
            Self::Static => &[DeviceClass::Npu],
            Self::Dynamic => &[DeviceClass::Igpu, DeviceClass::Cpu],
        }
    }

    /// Whether a call that has no kernel is an error of the load, rather than of the call.
    pub(crate) fn is_every_call(self) -> bool {
        self != Self::Static
    }
}
