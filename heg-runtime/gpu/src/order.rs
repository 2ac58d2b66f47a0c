//! Orders: calls of programs as recorded commands, which a pass submits.

use std::sync::Arc;
use std::time::Duration;

use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::lookup::{EmbeddingCall, GatherCall};
use crate::program::{GpuCall, GpuProduct, GpuProgram, GpuWeight};
use crate::region::GpuRegion;
use crate::state::NamedCaches;
use crate::vulkan::{Device, Dispatch, Memory, Recording, Timing, submit};

/// Commands of some launches, to be carried out again and again.
pub struct GpuOrder {
    device: Arc<Device>,
    launches: Vec<Recording>,
    /// The caches that states lead to, until the launches are done.
    _named: Vec<NamedCaches>,
}

/// Something that a launch does.
#[derive(Clone, Copy)]
pub enum GpuTask<'a> {
    /// A call of a program.
    Program(&'a GpuProgram, GpuCall<'a>),
    /// The embedding of a call's tokens.
    Embedding(EmbeddingCall<'a>),
    /// The choice of the rows that the head takes.
    Gather(GatherCall<'a>),
}

impl GpuOrder {
    /// Writes launches down. Pipelines that the device lacks are made.
    ///
    /// # Errors
    ///
    /// [`GpuError::Call`] where a call lacks what its program reads or writes, and what the driver says.
    pub fn record(device: &GpuDevice, launches: &[&[GpuTask<'_>]]) -> Result<Self, GpuError> {
        let mut named = Vec::new();
        let mut record = |launch: &&[GpuTask<'_>]| {
            let (mut dispatches, mut regions) = (Vec::new(), Vec::new());
            for task in *launch {
                match task {
                    GpuTask::Program(program, call) => {
                        dispatches.extend(program.dispatches(device, call)?);
                        regions.extend(call.regions());
                        named.push(call.state.named());
                    }
                    GpuTask::Embedding(call) => {
                        dispatches.push(call.dispatch(device)?);
                        regions.extend(call.regions());
                    }
                    GpuTask::Gather(call) => {
                        dispatches.push(call.dispatch(device)?);
                        regions.extend(call.regions());
                    }
                }
            }
            recorded(device, &dispatches, memories(&regions), Timing::None)
        };
        Ok(Self {
            device: Arc::clone(device.device()),
            launches: launches.iter().map(&mut record).collect::<Result<_, _>>()?,
            _named: named,
        })
    }

    /// Writes the areas of a product down that the device computes.
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record).
    pub fn record_product(
        device: &GpuDevice,
        program: &GpuProgram,
        product: &GpuProduct<'_>,
    ) -> Result<Self, GpuError> {
        let dispatches = program.area_dispatches(device, product)?;
        let rows = product.inputs.iter().chain(product.outputs).flatten();
        let own = [product.scratch, product.operands, product.state.region()];
        let regions = weight_regions(product.weights).chain(rows.map(|rows| &rows.region));
        let regions: Vec<_> = regions.chain(own).collect();
        Ok(Self {
            device: Arc::clone(device.device()),
            launches: vec![recorded(
                device,
                &dispatches,
                memories(&regions),
                Timing::Clock,
            )?],
            _named: Vec::new(),
        })
    }

    /// Number of launches.
    pub fn len(&self) -> usize {
        self.launches.len()
    }

    /// Whether there is nothing to carry out.
    pub fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }

    /// Carries all launches out, in one submission.
    ///
    /// # Errors
    ///
    /// [`GpuError::Lost`] and [`GpuError::Late`], after which nothing of the device can be used; what else its driver says.
    pub fn run(&self, patience: Duration) -> Result<(), GpuError> {
        let all: Vec<&Recording> = self.launches.iter().collect();
        let value = submit(&self.device, &all, None, None)?;
        self.device.wait(value, patience)
    }

    /// The time that the device was busy with the areas of a product, when they were last [run](Self::run); `None` where
    /// it has no clock for that, and for other orders.
    pub fn busy(&self) -> Option<Duration> {
        self.launches.iter().map(Recording::busy).sum()
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn recordings(&self) -> impl Iterator<Item = &Recording> {
        self.launches.iter()
    }
}

impl GpuCall<'_> {
    /// All that its commands use.
    fn regions(&self) -> impl Iterator<Item = &GpuRegion> {
        let rows = self.inputs.iter().chain(self.outputs).flatten();
        let own = [self.scratch, self.state.region()];
        let weights = weight_regions(self.weights);
        weights.chain(rows.map(|rows| &rows.region)).chain(own)
    }
}

fn weight_regions(weights: &[GpuWeight]) -> impl Iterator<Item = &GpuRegion> {
    weights.iter().flat_map(|weight| {
        let values = std::iter::once(&weight.values);
        values.chain(&weight.scales).chain(&weight.centres)
    })
}

/// The memories of regions, each once.
fn memories(regions: &[&GpuRegion]) -> Vec<Arc<Memory>> {
    let mut memories: Vec<_> = regions.iter().map(|region| region.memory()).collect();
    memories.sort_by_key(|memory| memory.address());
    memories.dedup_by_key(|memory| memory.address());
    memories
}

/// Records dispatches of checked calls.
#[allow(unsafe_code, reason = "modules read and write by address")]
pub(crate) fn recorded(
    device: &GpuDevice,
    dispatches: &[Dispatch],
    memories: Vec<Arc<Memory>>,
    timing: Timing,
) -> Result<Recording, GpuError> {
    // SAFETY: programs and look-ups give them, after `Program::check` found every width that steps rely on and
    // `GpuProgram::check` or `check_product` that rows, weights and scratch memory are as large; what modules follow at run time is in the
    // state alone, where `CallState::set` keeps it within the limits that the check measured memory by. It leads to caches
    // with all halves that calls name, whose memories the order keeps (`NamedCaches`).
    unsafe { Recording::new(device.device(), dispatches, memories, timing) }
}
