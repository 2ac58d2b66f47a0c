//! Forms that are CPU programs: a checked program, and the places of its weights in the mapped bundle.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use heg_artifacts::Bundle;
use heg_cpu::{AffineBytes, WeightBytes};

use super::order::ProgramOrder;
use super::role_device::RoleDevice;
use crate::backend::{AloneCall, Runner};
use crate::error::ExecError;

/// The kernel of one place, as a program.
pub(super) struct ProgramForm {
    pub(super) name: String,
    pub(super) kernel: Arc<heg_cpu::CpuKernel>,
    pub(super) weights: Vec<WeightPlace>,
    pub(super) bundle: Arc<Bundle>,
    pub(super) device: Arc<RoleDevice>,
}

/// Place of a weight in the bundle, in bytes.
pub(super) struct WeightPlace {
    pub(super) values: Range<usize>,
    pub(super) scales: Option<Range<usize>>,
    pub(super) centres: Option<Range<usize>>,
}

impl Runner for ProgramForm {
    fn run_alone(&mut self, call: &AloneCall<'_>) -> Result<(), ExecError> {
        let mut order = ProgramOrder::default();
        order.add(self, call.tokens, call)?;
        order.run(&|_| true, false)?;
        Ok(())
    }
}

/// An error of a program.
pub(super) fn running(kernel: &str) -> impl Fn(heg_cpu::CpuError) -> ExecError {
    let kernel = kernel.to_owned();
    move |source| ExecError::Program {
        kernel: kernel.clone(),
        source,
    }
}

impl ProgramForm {
    /// The form, if a runner is a program.
    pub(super) fn of(runner: &dyn Runner) -> Option<&Self> {
        let any: &dyn Any = runner;
        any.downcast_ref()
    }

    /// Name of its kernel.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The kernel.
    pub(super) fn kernel(&self) -> &heg_cpu::CpuKernel {
        &self.kernel
    }

    /// The bundle that its weights are in.
    pub(super) fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// The device that runs it.
    pub(super) fn device(&self) -> &RoleDevice {
        &self.device
    }

    /// Whether both are run by the same processor.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.device, &other.device)
    }

    /// Its weights where they lie.
    pub(super) fn weights(&self) -> impl Iterator<Item = WeightBytes<'_>> {
        let bytes: &[u8] = self.bundle.mapping();
        let slice = |place: &Range<usize>| bytes.get(place.clone()).unwrap_or_default();
        self.weights.iter().map(move |weight| WeightBytes {
            values: slice(&weight.values),
            affine: weight.scales.as_ref().map(|scales| AffineBytes {
                scales: slice(scales),
                centres: weight.centres.as_ref().map(slice),
            }),
        })
    }
}
