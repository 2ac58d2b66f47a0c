//! Orders: calls of programs as recorded commands, carried out launch by launch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::lookup::{EmbeddingCall, GatherCall};
use crate::program::{GpuCall, GpuProgram};
use crate::region::GpuRegion;
use crate::vulkan::{Device, Dispatch, Memory, Recording};

/// Commands of some launches, each a submission of its own, to be carried out again and again.
pub struct GpuOrder {
    device: Arc<Device>,
    launches: Vec<Recording>,
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

/// Launches that are submitted before the first of them is done. Chosen: the device goes on while the host asks whether
/// to, and a lane gives way behind two of them.
const AHEAD: usize = 2;

impl GpuOrder {
    /// Writes launches down. Pipelines that the device lacks are made.
    ///
    /// # Errors
    ///
    /// [`GpuError::Call`] where a call lacks what its program reads or writes, and what the driver says.
    pub fn record(device: &GpuDevice, launches: &[&[GpuTask<'_>]]) -> Result<Self, GpuError> {
        let record = |launch: &&[GpuTask<'_>]| {
            let (mut dispatches, mut regions) = (Vec::new(), Vec::new());
            for task in *launch {
                match task {
                    GpuTask::Program(program, call) => {
                        dispatches.extend(program.dispatches(device, call)?);
                        regions.extend(call.regions());
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
            recorded(device, &dispatches, memories(&regions))
        };
        Ok(Self {
            device: Arc::clone(device.device()),
            launches: launches.iter().map(record).collect::<Result<_, _>>()?,
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

    /// Carries launches out from `first` on, until all are done or `goes_on` says no: it is asked before each, with its
    /// number. Returns the number of the launch to go on with. All that was begun is done by then.
    ///
    /// # Errors
    ///
    /// [`GpuError::Lost`] and [`GpuError::Late`], after which nothing of the device can be used; what else its driver says.
    pub fn run(
        &self,
        first: usize,
        patience: Duration,
        mut goes_on: impl FnMut(usize) -> bool,
    ) -> Result<usize, GpuError> {
        let wait = |value| self.device.wait(value, patience);
        let launches = self.launches.iter().skip(first);
        let ran = carry_out(launches, wait, |next| goes_on(first + next))?;
        Ok(first + ran)
    }

    /// Carries orders of one device out, one after the other, as [`run`](Self::run) does the launches of one, and returns
    /// the number of launches that ran. `cancel` ends the wait for the device, which is lost then.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_all(
        orders: &[&Self],
        patience: Duration,
        cancel: Option<&AtomicBool>,
        goes_on: impl FnMut(usize) -> bool,
    ) -> Result<usize, GpuError> {
        let Some(first) = orders.first() else {
            return Ok(0);
        };
        let wait = |value| match cancel {
            Some(cancel) => first.device.wait_unless(value, patience, cancel),
            None => first.device.wait(value, patience),
        };
        let here = orders.iter();
        let here = here.take_while(|order| Arc::ptr_eq(&order.device, &first.device));
        carry_out(here.flat_map(|order| &order.launches), wait, goes_on)
    }
}

/// Submits recordings of one device, never more than [`AHEAD`] before the first of them is done, and waits for all.
fn carry_out<'a>(
    launches: impl Iterator<Item = &'a Recording>,
    wait: impl Fn(u64) -> Result<(), GpuError>,
    mut goes_on: impl FnMut(usize) -> bool,
) -> Result<usize, GpuError> {
    let mut pending = VecDeque::with_capacity(AHEAD);
    let mut ran = 0;
    for launch in launches {
        if pending.len() == AHEAD
            && let Some(value) = pending.pop_front()
        {
            wait(value)?;
        }
        if !goes_on(ran) {
            break;
        }
        pending.push_back(launch.submit()?);
        ran += 1;
    }
    if let Some(value) = pending.back() {
        wait(*value)?;
    }
    Ok(ran)
}

impl GpuCall<'_> {
    /// All that its commands use.
    fn regions(&self) -> impl Iterator<Item = &GpuRegion> {
        let weights = self.weights.iter().flat_map(|weight| {
            let values = std::iter::once(&weight.values);
            values.chain(&weight.scales).chain(&weight.centres)
        });
        let rows = self.inputs.iter().flatten().chain(self.outputs);
        let own = [self.scratch, self.state.region()];
        weights.chain(rows.map(|rows| &rows.region)).chain(own)
    }
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
) -> Result<Recording, GpuError> {
    // SAFETY: programs and look-ups give them, after `Program::check` found every width that steps rely on and
    // `GpuProgram::check` that rows, weights and scratch memory are as large; what modules follow at run time is in the
    // state alone, where `CallState::set` keeps it within the limits that the check measured memory by.
    unsafe { Recording::new(device.device(), dispatches, memories) }
}
