//! Copies between the host and a device's own memory that go along with other commands: bytes wait in memory that both
//! reach, and commands that are recorded anew each time take them from there or bring them there.

use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use super::commands::{Args, DONE, NEXT, Side, barrier};
use super::device::Device;
use super::memory::{Kind, Memory};
use super::pipeline::Pipeline;
use crate::error::GpuError;

/// Copies in one direction.
pub(crate) struct Copies {
    device: Arc<Device>,
    towards: Towards,
    /// The module of small copies, and the memory with those that it does.
    small: Arc<Pipeline>,
    list: Option<Arc<Memory>>,
    /// Memory that both reach; none before the first copy.
    staging: Option<Arc<Memory>>,
    used: u64,
    listed: Vec<Listed>,
    commands: vk::CommandBuffer,
    /// The memories that the commands use.
    recorded: Vec<Arc<Memory>>,
    /// The timeline's value of their last submission.
    last: u64,
}

/// The end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Towards {
    Device,
    Host,
}

/// A copy of bytes between the staging memory and another.
struct Listed {
    memory: Arc<Memory>,
    first: u64,
    staged: u64,
    bytes: u64,
}

impl Listed {
    /// Whether the module does it, which copies words.
    fn is_small(&self) -> bool {
        let whole = self.first.is_multiple_of(4) && self.bytes.is_multiple_of(4);
        whole && self.bytes <= SMALL_BYTES
    }
}

/// The least size of staging memory. Chosen: a decode step of a small model fits.
const STAGING_BYTES: u64 = 1 << 20;

/// Size of a copy that the module does, at most. Chosen: a row of keys of any model, and not a chunk of them.
const SMALL_BYTES: u64 = 16 << 10;

/// Workgroups that every device takes side by side.
const GROUPS_MAX: u32 = 65535;

/// Words of a small copy in the list, as in `shaders/copy.comp`.
const LIST_WORDS: usize = 8;

/// Distance of copies in staging memory, so that none begins within another's cache line.
const ALIGNMENT: u64 = 64;

/// The longest wait for the device when copies are dropped.
const PATIENCE: Duration = Duration::from_secs(30);

impl Copies {
    /// Nothing to copy. `small` is the pipeline of small copies.
    pub(crate) fn new(
        device: &Arc<Device>,
        towards: Towards,
        small: Arc<Pipeline>,
    ) -> Result<Self, GpuError> {
        let commands = device.with_queue(|queue| {
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(queue.pool)
                .command_buffer_count(1);
            // SAFETY: the pool is locked.
            let buffers = unsafe { device.handle.allocate_command_buffers(&info) }?;
            buffers.first().copied().ok_or(vk::Result::ERROR_UNKNOWN)
        });
        Ok(Self {
            commands: commands.map_err(|code| device.failed("copies", code))?,
            device: Arc::clone(device),
            towards,
            small,
            list: None,
            staging: None,
            used: 0,
            listed: Vec::new(),
            recorded: Vec::new(),
            last: 0,
        })
    }

    /// Lists a copy of bytes to a memory. Those before must be done.
    pub(crate) fn bring(
        &mut self,
        memory: &Arc<Memory>,
        first: u64,
        bytes: &[u8],
    ) -> Result<(), GpuError> {
        let staged = self.list(memory, first, bytes.len())?;
        let needed = self.used;
        let staging = match self.staging.take() {
            Some(staging) if staging.bytes() >= needed => staging,
            before => {
                let larger = self.new_staging(needed)?;
                if let Some(before) = before {
                    let mut moved = vec![0; usize::try_from(staged).unwrap_or(0)];
                    before.read(0, &mut moved)?;
                    larger.write(0, &moved)?;
                }
                larger
            }
        };
        staging.write(staged, bytes)?;
        self.staging = Some(staging);
        Ok(())
    }

    /// Lists a copy of bytes from a memory, and returns where they will be in the staging memory.
    pub(crate) fn take(
        &mut self,
        memory: &Arc<Memory>,
        first: u64,
        bytes: usize,
    ) -> Result<u64, GpuError> {
        self.list(memory, first, bytes)
    }

    /// Reads bytes that were taken, once the commands are done.
    pub(crate) fn read(&self, staged: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        let end = staged.saturating_add(bytes.len() as u64);
        match &self.staging {
            Some(staging) => staging.read(staged, bytes),
            None => Err(GpuError::Range {
                first: staged,
                end,
                bytes: 0,
            }),
        }
    }

    fn list(&mut self, memory: &Arc<Memory>, first: u64, bytes: usize) -> Result<u64, GpuError> {
        memory.check(first, bytes)?;
        let (staged, bytes) = (self.used, bytes as u64);
        self.used = (staged + bytes).next_multiple_of(ALIGNMENT);
        self.listed.push(Listed {
            memory: Arc::clone(memory),
            first,
            staged,
            bytes,
        });
        Ok(staged)
    }

    fn new_staging(&self, bytes: u64) -> Result<Arc<Memory>, GpuError> {
        let bytes = bytes.next_power_of_two().max(STAGING_BYTES);
        Memory::new(&self.device, bytes, Kind::Host)
    }

    /// Forgets what was listed, for the next time.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.listed.clear();
    }

    /// Commands for what was listed, if anything was. The commands of the last time are done.
    pub(super) fn record(&mut self) -> Result<Option<vk::CommandBuffer>, GpuError> {
        if self.listed.is_empty() {
            return Ok(None);
        }
        self.device.wait(self.last, PATIENCE)?;
        let staging = match self.staging.take() {
            Some(staging) if staging.bytes() >= self.used => staging,
            _ => self.new_staging(self.used)?,
        };
        let small = self.write_list(&staging)?;
        let others = self.listed.iter().map(|it| Arc::clone(&it.memory));
        let own = [Arc::clone(&staging)].into_iter().chain(self.list.clone());
        self.recorded = others.chain(own).collect();
        // SAFETY: the pool is locked, and the commands are not pending; ranges were checked when they were listed, and
        // staging memory has all that was used of it; the list is that of `small` copies; `recorded` keeps the memories.
        let written = self
            .device
            .with_queue(|_| unsafe { self.write(&staging, small) });
        written.map_err(|code| self.device.failed("recording of copies", code))?;
        self.staging = Some(staging);
        Ok(Some(self.commands))
    }

    /// Writes the list of small copies, and returns their number.
    fn write_list(&mut self, staging: &Memory) -> Result<u32, GpuError> {
        let mut words: Vec<u32> = Vec::new();
        for it in self.listed.iter().filter(|it| it.is_small()) {
            let memory = it.memory.address() + it.first;
            let staged = staging.address() + it.staged;
            let (from, to) = match self.towards {
                Towards::Device => (staged, memory),
                Towards::Host => (memory, staged),
            };
            let halves = |address: u64| [address as u32, (address >> 32) as u32];
            words.extend([halves(from), halves(to)].concat());
            words.extend([(it.bytes / 4) as u32, 0, 0, 0]);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let needed = bytes.len() as u64;
        let list = match self.list.take() {
            Some(list) if list.bytes() >= needed => list,
            _ => Memory::new(&self.device, needed.next_power_of_two(), Kind::Written)?,
        };
        list.write(0, &bytes)?;
        self.list = Some(list);
        Ok((words.len() / LIST_WORDS) as u32)
    }

    /// # Safety
    ///
    /// The pool of the commands is locked, and they are not pending; the list has `small` copies between memories that
    /// are kept.
    unsafe fn write(&self, staging: &Memory, small: u32) -> Result<(), vk::Result> {
        let calls = &self.device.handle;
        let once = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the caller's; buffers are made for copies in both directions.
        unsafe {
            calls.begin_command_buffer(self.commands, &once)?;
            let (before, behind) = match self.towards {
                Towards::Device => (HOST, (TRANSFERRED, NEXT)),
                Towards::Host => (DONE, (TRANSFERRED, READ_BY_HOST)),
            };
            barrier(&self.device, self.commands, before, TRANSFERRED);
            if let Some(list) = self.list.as_ref().filter(|_| small > 0) {
                let point = vk::PipelineBindPoint::COMPUTE;
                calls.cmd_bind_pipeline(self.commands, point, self.small.handle);
                let mut args = Args::default();
                args.at[0] = list.address();
                args.n[0] = small;
                let (layout, stage) = (self.device.layout, vk::ShaderStageFlags::COMPUTE);
                calls.cmd_push_constants(self.commands, layout, stage, 0, &args.bytes());
                calls.cmd_dispatch(self.commands, small.min(GROUPS_MAX), 1, 1);
            }
            for it in self.listed.iter().filter(|it| !it.is_small()) {
                let region = |from, to| {
                    [vk::BufferCopy {
                        src_offset: from,
                        dst_offset: to,
                        size: it.bytes,
                    }]
                };
                let (from, to, regions) = match self.towards {
                    Towards::Device => (staging, &*it.memory, region(it.staged, it.first)),
                    Towards::Host => (&*it.memory, staging, region(it.first, it.staged)),
                };
                calls.cmd_copy_buffer(self.commands, from.buffer, to.buffer, &regions);
            }
            barrier(&self.device, self.commands, behind.0, behind.1);
            calls.end_command_buffer(self.commands)
        }
    }

    /// Notes that the commands were submitted.
    pub(super) fn note(&mut self, value: u64) {
        self.last = value;
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = self.device.wait(self.last, PATIENCE);
        if self.device.is_stuck() {
            // The device may still use what nobody waits for any more.
            std::mem::forget(std::mem::take(&mut self.recorded));
            return;
        }
        // SAFETY: the commands are done, or the device is lost; the pool is locked.
        self.device.with_queue(|queue| unsafe {
            let calls = &self.device.handle;
            calls.free_command_buffers(queue.pool, &[self.commands]);
        });
    }
}

/// Memory that the host wrote.
const HOST: Side = Side {
    stages: vk::PipelineStageFlags::from_raw(
        vk::PipelineStageFlags::HOST.as_raw()
            | vk::PipelineStageFlags::COMPUTE_SHADER.as_raw()
            | vk::PipelineStageFlags::TRANSFER.as_raw(),
    ),
    access: vk::AccessFlags::from_raw(
        vk::AccessFlags::HOST_WRITE.as_raw()
            | vk::AccessFlags::SHADER_WRITE.as_raw()
            | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
    ),
};

/// Copies, those of the module too.
const TRANSFERRED: Side = Side {
    stages: vk::PipelineStageFlags::from_raw(
        vk::PipelineStageFlags::TRANSFER.as_raw() | NEXT.stages.as_raw(),
    ),
    access: vk::AccessFlags::from_raw(
        vk::AccessFlags::TRANSFER_READ.as_raw()
            | vk::AccessFlags::TRANSFER_WRITE.as_raw()
            | NEXT.access.as_raw(),
    ),
};

/// Reads of the host.
const READ_BY_HOST: Side = Side {
    stages: vk::PipelineStageFlags::HOST,
    access: vk::AccessFlags::HOST_READ,
};
