//! Commands: recorded once, submitted again and again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ash::vk;

use super::clock::Clock;
use super::copies::Copies;
use super::device::Device;
use super::memory::Memory;
use super::pipeline::Pipeline;
use crate::error::GpuError;

/// Arguments of a module, as `shaders/include/memory.glsl` has them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Args {
    /// Device addresses.
    pub(crate) at: [u64; 8],
    /// Counts and strides.
    pub(crate) n: [u32; 8],
    /// Factors.
    pub(crate) s: [f32; 4],
}

impl Args {
    /// As bytes, in the order of the device.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let addresses = self.at.iter().flat_map(|it| it.to_ne_bytes());
        let counts = self.n.iter().flat_map(|it| it.to_ne_bytes());
        let factors = self.s.iter().flat_map(|it| it.to_ne_bytes());
        addresses.chain(counts).chain(factors).collect()
    }
}

/// A pipeline over a grid of workgroups.
#[derive(Clone)]
pub(crate) struct Dispatch {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) args: Args,
    pub(crate) groups: [u32; 2],
    /// Whether all before it must be done first.
    pub(crate) waits: bool,
}

/// Commands that can be submitted again and again.
pub(crate) struct Recording {
    device: Arc<Device>,
    handle: vk::CommandBuffer,
    /// The objects that the commands use.
    _pipelines: Vec<Arc<Pipeline>>,
    _memories: Vec<Arc<Memory>>,
    clock: Option<Clock>,
    /// The timeline's value of the last submission.
    last: Mutex<u64>,
}

/// Whether commands read the device's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timing {
    None,
    /// Before and behind all dispatches.
    Clock,
}

/// The longest wait for the device when a recording is dropped.
const PATIENCE: Duration = Duration::from_secs(30);

impl Recording {
    /// Records dispatches, one after the other.
    ///
    /// # Safety
    ///
    /// The device reads and writes where arguments say, unchecked: every address with all that its module reads or
    /// writes from there lies within one of `memories`, or in one that the caller keeps until the recording is dropped, for
    /// all contents that the memories have at a submission.
    pub(crate) unsafe fn new(
        device: &Arc<Device>,
        dispatches: &[Dispatch],
        memories: Vec<Arc<Memory>>,
        timing: Timing,
    ) -> Result<Self, GpuError> {
        let failed = |code| device.failed("recording", code);
        let clock = match timing {
            Timing::None => None,
            Timing::Clock => Clock::new(device).map_err(failed)?,
        };
        // SAFETY: the pool is locked, as all recording wants it.
        let handle = device.with_queue(|queue| unsafe {
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(queue.pool)
                .command_buffer_count(1);
            let buffers = device
                .handle
                .allocate_command_buffers(&info)
                .map_err(failed)?;
            let handle = buffers.first().copied();
            let handle = handle.ok_or_else(|| failed(vk::Result::ERROR_UNKNOWN))?;
            let written = write(device, handle, dispatches, clock.as_ref()).map_err(failed);
            if written.is_err() {
                device.handle.free_command_buffers(queue.pool, &[handle]);
            }
            written.map(|()| handle)
        })?;
        let pipelines = dispatches.iter().map(|it| Arc::clone(&it.pipeline));
        Ok(Self {
            device: Arc::clone(device),
            handle,
            _pipelines: pipelines.collect(),
            _memories: memories,
            clock,
            last: Mutex::new(0),
        })
    }

    /// The time that the device was busy with the last submission, which is done; `None` if it was not taken.
    pub(crate) fn busy(&self) -> Option<Duration> {
        self.clock.as_ref()?.between()
    }

    /// Submits the commands, once those of an earlier submission are done; the value to wait for.
    pub(crate) fn submit(&self) -> Result<u64, GpuError> {
        submit(&self.device, &[self], None, None)
    }
}

/// Submits recordings of a device in one go, behind copies to the device and before those to the host; the value to wait
/// for. Without copies to the host, what the recordings wrote is the host's to read.
pub(crate) fn submit(
    device: &Device,
    recordings: &[&Recording],
    brought: Option<&mut Copies>,
    taken: Option<&mut Copies>,
) -> Result<u64, GpuError> {
    let mut copies = [brought, taken];
    let [brought, taken] = &mut copies;
    let record = |copies: &mut Option<&mut Copies>| match copies {
        Some(copies) => copies.record(),
        None => Ok(None),
    };
    let (before, behind) = (record(brought)?, record(taken)?);
    let mut lasts = Vec::with_capacity(recordings.len());
    for recording in recordings {
        let last = recording.last.lock();
        let last = last.unwrap_or_else(PoisonError::into_inner);
        // The same commands are never pending twice.
        device.wait(*last, PATIENCE)?;
        lasts.push(last);
    }
    let own = recordings.iter().map(|recording| recording.handle);
    let all = before.into_iter().chain(own).chain(behind);
    let value = device.submit(&all.chain([device.ending]).collect::<Vec<_>>())?;
    for last in &mut lasts {
        **last = value;
    }
    for copies in copies.into_iter().flatten() {
        copies.note(value);
    }
    Ok(value)
}

/// Records the end of every submission: what was written before is the host's to read.
///
/// # Safety
///
/// The commands are fresh, and their pool is locked.
pub(super) unsafe fn write_ending(
    device: &Device,
    commands: vk::CommandBuffer,
) -> Result<(), vk::Result> {
    let again =
        vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
    let read = Side {
        stages: vk::PipelineStageFlags::HOST,
        access: vk::AccessFlags::HOST_READ,
    };
    // SAFETY: the caller's.
    unsafe {
        device.handle.begin_command_buffer(commands, &again)?;
        barrier(device, commands, DONE, read);
        device.handle.end_command_buffer(commands)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let last = self.last.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = self.device.wait(*last, PATIENCE);
        if self.device.is_stuck() {
            return;
        }
        // SAFETY: the commands are done, or the device is lost; the pool is locked.
        self.device.with_queue(|queue| unsafe {
            self.device
                .handle
                .free_command_buffers(queue.pool, &[self.handle]);
        });
    }
}

/// # Safety
///
/// As [`Recording::new`]; the pool of the commands is locked.
unsafe fn write(
    device: &Device,
    commands: vk::CommandBuffer,
    dispatches: &[Dispatch],
    clock: Option<&Clock>,
) -> Result<(), vk::Result> {
    let calls = &device.handle;
    // SAFETY: the commands are fresh; pipelines are of this device, whose layout has the arguments' size; grids are
    // within the limits that every device has.
    unsafe {
        calls.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())?;
        if let Some(clock) = clock {
            clock.begin(commands);
        }
        // What was written before; a submission has the host's writes by itself.
        for (index, dispatch) in dispatches.iter().enumerate() {
            if dispatch.waits || index == 0 {
                barrier(device, commands, DONE, NEXT);
            }
            let point = vk::PipelineBindPoint::COMPUTE;
            calls.cmd_bind_pipeline(commands, point, dispatch.pipeline.handle);
            let bytes = dispatch.args.bytes();
            let stage = vk::ShaderStageFlags::COMPUTE;
            calls.cmd_push_constants(commands, device.layout, stage, 0, &bytes);
            let [x, y] = dispatch.groups;
            calls.cmd_dispatch(commands, x, y, 1);
        }
        if let Some(clock) = clock {
            clock.end(commands);
        }
        calls.end_command_buffer(commands)
    }
}

const COMPUTE: vk::PipelineStageFlags = vk::PipelineStageFlags::COMPUTE_SHADER;
const READ: vk::AccessFlags = vk::AccessFlags::SHADER_READ;
const WRITE: vk::AccessFlags = vk::AccessFlags::SHADER_WRITE;

/// One side of a barrier.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub(super) stages: vk::PipelineStageFlags,
    pub(super) access: vk::AccessFlags,
}

/// Dispatches before a barrier.
pub(super) const DONE: Side = Side {
    stages: COMPUTE,
    access: WRITE,
};

/// Dispatches behind a barrier.
pub(super) const NEXT: Side = Side {
    stages: COMPUTE,
    access: vk::AccessFlags::from_raw(READ.as_raw() | WRITE.as_raw()),
};

/// # Safety
///
/// The commands are being recorded.
pub(super) unsafe fn barrier(
    device: &Device,
    commands: vk::CommandBuffer,
    before: Side,
    behind: Side,
) {
    let barriers = [vk::MemoryBarrier::default()
        .src_access_mask(before.access)
        .dst_access_mask(behind.access)];
    let none = vk::DependencyFlags::empty();
    // SAFETY: the caller's.
    unsafe {
        let calls = &device.handle;
        let (before, behind) = (before.stages, behind.stages);
        calls.cmd_pipeline_barrier(commands, before, behind, none, &barriers, &[], &[]);
    }
}
