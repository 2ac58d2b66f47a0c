//! Measuring kernels: which calls are run, how often, in which order, and what is made of the samples
//! (HeteroLLM §4.3, "real-execution mode"; Agent.xpu §4.2, Fig. 4).
//!
//! What runs is behind [`Subject`]: the runtime implements it over a loaded bundle, tests over a synthetic
//! device whose truth is known. There is no clock here: time is what the subject says that a run took, budgets
//! included. [`profile`] makes a whole [`Profile`], kernel by kernel, and goes on with one that was begun.

mod annotate;
mod check;
mod contention;
mod grid;
mod profile;
mod report;
mod session;
mod settle;
#[cfg(test)]
mod synthetic;

pub use check::check;
pub use profile::{
    DeviceIdentity, DeviceProfile, PROFILE_BYTES_MAX, PROFILE_REVISION, Profile, ProfileError,
    VariantProfile,
};
pub use report::{AnchorReport, KernelReport, Report};
pub use session::{Watch, device_peaks, profile};
pub use settle::{MeasurementPlan, Settled, quantile, settle};

use std::time::Duration;

use heg_artifacts::manifest::{Binding, ShapeClass, Work};
use heg_spec::DeviceClass;

use crate::predict::CallShape;

/// Something that can be measured: kernels on devices.
pub trait Subject {
    /// The error of a failed run.
    type Error;

    /// What can be run. Indices into it are what the other functions take.
    fn cases(&self) -> &[Case];

    /// Runs a case once and says how long that took. Successive runs are at successive places of the model, so
    /// that weights come from memory as they do in a pass.
    fn run(&mut self, case: usize, call: CallShape) -> Result<Duration, Self::Error>;

    /// From now on runs a case over and over on a thread of its own, beside what [`Self::run`] runs; `None`
    /// ends that.
    fn load(&mut self, beside: Option<(usize, CallShape)>) -> Result<(), Self::Error>;
}

/// A kernel variant on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Name of the kernel.
    pub kernel: String,
    /// The device's role.
    pub device: DeviceClass,
    /// Shape class of the variant.
    pub shape: ShapeClass,
    /// Weight binding of the variant.
    pub binding: Binding,
    /// Work of one call.
    pub work: Work,
    /// Largest c that is asked of it.
    pub tokens_max: u32,
    /// Largest n that is asked of it; 0 where latency does not depend on n.
    pub context_max: u32,
    /// n is always a multiple of this; 1 where it does not matter.
    pub context_step: u32,
    /// Places that runs go round; each sees a new size of call once before anything is timed.
    pub places: u32,
}

impl Case {
    /// The case in a word: `ffn`, or `ffn@npu:128` for a static variant of a role.
    pub fn label(&self) -> String {
        let device = self.device.name();
        match (self.shape.chunk(), self.shape.bucket()) {
            (None, _) => format!("{}@{device}", self.kernel),
            (Some(chunk), None) => format!("{}@{device}:{chunk}", self.kernel),
            (Some(chunk), Some(bucket)) => format!("{}@{device}:{chunk}x{bucket}", self.kernel),
        }
    }
}
