//! Measuring kernels: the selection, number and order of runs, and the evaluation of the samples (HeteroLLM §4.3,
//! "real-execution mode"; Agent.xpu §4.2, Fig. 4).
//!
//! The device is behind [`Subject`]: the runtime implements it over a loaded bundle, tests over a synthetic device with
//! known latencies. There is no clock here: times, those of budgets included, are the durations that the subject
//! reports. [`profile`] makes a whole [`Profile`], kernel by kernel, and resumes an incomplete one.

mod annotate;
mod check;
mod contention;
mod grid;
mod pieces;
mod profile;
mod report;
mod session;
mod settle;
#[cfg(test)]
mod synthetic;

pub use check::check;
pub use pieces::{PairKernel, PairSubject, PieceTimes, SolvedPieces, measure_pieces};
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

    /// The cases that can be run. The other functions take indices into it.
    fn cases(&self) -> &[Case];

    /// Runs a case once and returns its duration. Successive runs are at successive places of the model, so that
    /// weights come from memory as they do in a pass.
    fn run(&mut self, case: usize, call: CallShape) -> Result<Duration, Self::Error>;

    /// Starts to run a case over and over on a thread of its own, beside the runs of [`Self::run`]; `None` stops it.
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
    /// Largest c that it is called with.
    pub tokens_max: u32,
    /// Largest n that it is called with; 0 if latency does not depend on n.
    pub context_max: u32,
    /// Divisor of every n; 1 if it does not matter.
    pub context_step: u32,
    /// Number of places that runs cycle through; each runs a new size of call once before anything is timed.
    pub places: u32,
}

impl Case {
    /// A short label: `ffn`, or `ffn@npu:128` for a static variant of a role.
    pub fn label(&self) -> String {
        let device = self.device.name();
        match (self.shape.chunk(), self.shape.bucket()) {
            (None, _) => format!("{}@{device}", self.kernel),
            (Some(chunk), None) => format!("{}@{device}:{chunk}", self.kernel),
            (Some(chunk), Some(bucket)) => format!("{}@{device}:{chunk}x{bucket}", self.kernel),
        }
    }
}
