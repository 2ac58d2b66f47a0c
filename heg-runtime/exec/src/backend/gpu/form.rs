//! Forms that are CPU programs on a GPU: a program that the device runs, and its weights there.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{ElementType, Kernel, KernelUse, Manifest, RopeTable, WeightId};
use heg_gpu::{GpuError, GpuProgram, GpuRegion, GpuSections, GpuWeight};

use super::alone;
use super::role::{GpuRole, failed};
use crate::backend::{AloneCall, Runner};
use crate::error::ExecError;
use crate::parts::Parts;

/// The kernel of one place, as a program on a GPU.
pub(super) struct GpuForm {
    pub(super) name: String,
    pub(super) role: Arc<GpuRole>,
    pub(super) program: Arc<GpuProgram>,
    pub(super) weights: Vec<GpuWeight>,
    pub(super) bundle: Arc<Bundle>,
    /// Element type of keys and values.
    pub(super) kv: ElementType,
    /// Its number among the forms of this process.
    pub(super) number: u64,
    kernel: u32,
    sections: Arc<GpuSections>,
}

/// Forms that were made so far.
static FORMS: AtomicU64 = AtomicU64::new(0);

impl GpuForm {
    /// The form of a place. Hashes of what it is made of are checked.
    pub(super) fn new(role: &Arc<GpuRole>, parts: &Parts<'_>) -> Result<Self, ExecError> {
        let activations = parts.elements.activations;
        if !matches!(activations, ElementType::F32 | ElementType::F16) {
            return Err(ExecError::Refused {
                kernel: parts.kernel.name.clone(),
                message: format!("its activations are {activations:?}, a GPU takes f32 and f16"),
            });
        }
        let program = role.program(parts)?;
        let sections = role.sections(parts.bundle)?;
        let weights = weights(parts.bundle.manifest(), parts.used, &sections);
        Ok(Self {
            name: parts.kernel.name.clone(),
            role: Arc::clone(role),
            program,
            weights: weights.map_err(failed(&parts.kernel.name))?,
            bundle: Arc::clone(parts.bundle),
            kv: parts.elements.kv,
            number: FORMS.fetch_add(1, Ordering::Relaxed),
            kernel: parts.used.kernel.0,
            sections,
        })
    }

    /// The form, if a runner is a program on a GPU.
    pub(super) fn of(runner: &dyn Runner) -> Option<&Self> {
        let any: &dyn Any = runner;
        any.downcast_ref()
    }

    /// Whether both are run by the same device in the same role.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.role, &other.role)
    }

    /// The kernel in the bundle.
    pub(super) fn kernel(&self) -> Option<&Kernel> {
        self.bundle.manifest().kernels.get(self.kernel as usize)
    }

    /// Cosines and sines of a rotary table.
    pub(super) fn rotary(&self, table: &RopeTable) -> Result<[GpuRegion; 2], ExecError> {
        let section = |id| self.sections.section(id).map_err(failed(&self.name));
        Ok([section(table.cos)?, section(table.sin)?])
    }
}

impl Runner for GpuForm {
    fn run_alone(&mut self, call: &AloneCall<'_>) -> Result<(), ExecError> {
        alone::run(self, call)
    }
}

/// The weights of a place on the device.
fn weights(
    manifest: &Manifest,
    used: &KernelUse,
    sections: &GpuSections,
) -> Result<Vec<GpuWeight>, GpuError> {
    let weight = |id: &WeightId| manifest.weights.get(id.0 as usize);
    let weights = used.weights.iter().filter_map(weight);
    let brought = weights.map(|weight| {
        let of_rows = |id: Option<_>| id.map(|id| sections.section(id)).transpose();
        Ok(GpuWeight {
            values: sections.section(weight.values)?,
            scales: of_rows(weight.scales)?,
            centres: of_rows(weight.centres)?,
        })
    });
    brought.collect()
}
