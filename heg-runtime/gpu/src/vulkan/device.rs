//! A device with one queue, and the timeline that counts what it has finished.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ash::vk;

use super::commands::{Args, write_ending};
use super::instance::{Candidate, Instance, vulkan_error};
use crate::error::GpuError;

/// A device that is in use.
pub(crate) struct Device {
    /// Destroyed after the device.
    pub(crate) instance: Arc<Instance>,
    pub(crate) candidate: Candidate,
    pub(super) handle: ash::Device,
    pub(super) import: Option<ash::ext::external_memory_host::Device>,
    pub(super) layout: vk::PipelineLayout,
    pub(super) memory_types: Vec<vk::MemoryPropertyFlags>,
    /// Commands at the end of every submission.
    pub(super) ending: vk::CommandBuffer,
    /// Whether the host may reach the device's own memory where the driver lets it.
    pub(super) maps_own_memory: bool,
    timeline: vk::Semaphore,
    queue: Mutex<Queue>,
    /// The largest value that the timeline is known to have had.
    reached: AtomicU64,
    /// Whether a wait ended too early to know that the device is done: what it may use is not freed any more.
    stuck: AtomicBool,
    /// Whether the driver has said that the device is lost.
    lost: AtomicBool,
}

/// Interval at which a flag is read that ends a wait. Chosen: a tenth of the time in which a person notices.
const INTERVAL: Duration = Duration::from_millis(100);

/// The objects that only one thread may use at a time.
pub(super) struct Queue {
    pub(super) handle: vk::Queue,
    pub(super) pool: vk::CommandPool,
    /// The value that the timeline has when all that was submitted is done.
    pub(super) submitted: u64,
}

impl Device {
    /// Makes a device ready.
    pub(crate) fn open(
        instance: &Arc<Instance>,
        candidate: &Candidate,
        maps_own_memory: bool,
    ) -> Result<Arc<Self>, GpuError> {
        let failed = |call| move |code| vulkan_error(&candidate.name, call, code);
        let family = instance.compute_family(candidate.handle).unwrap_or(0);
        let (priorities, mut names) = ([1.0], Vec::new());
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family)
            .queue_priorities(&priorities)];
        if candidate.import_alignment.is_some() {
            names.push(ash::ext::external_memory_host::NAME.as_ptr());
        }
        if candidate.dot_extension {
            names.push(ash::khr::shader_integer_dot_product::NAME.as_ptr());
        }
        let mut features = vk::PhysicalDeviceVulkan12Features::default()
            .buffer_device_address(true)
            .timeline_semaphore(true);
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default()
            .shader_integer_dot_product(true);
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .push_next(&mut features);
        if candidate.has_dots {
            info = info.push_next(&mut dots);
        }
        // SAFETY: the handle is one of the instance's, which the device holds; features and extensions are those that it
        // said to have; everything that `info` points to lives until the call returns.
        let handle = unsafe { instance.handle.create_device(candidate.handle, &info, None) }
            .map_err(failed("creation of a device"))?;
        // SAFETY: the handle is one of the instance's.
        let memory = unsafe {
            instance
                .handle
                .get_physical_device_memory_properties(candidate.handle)
        };
        let types = memory.memory_types_as_slice().iter();
        // SAFETY: the device has a queue of this family.
        let queue = unsafe { handle.get_device_queue(family, 0) };
        // From here on dropping it frees what is there: null handles may be destroyed.
        let mut device = Self {
            import: candidate
                .import_alignment
                .map(|_| ash::ext::external_memory_host::Device::new(&instance.handle, &handle)),
            instance: Arc::clone(instance),
            candidate: candidate.clone(),
            handle,
            layout: vk::PipelineLayout::null(),
            memory_types: types.map(|it| it.property_flags).collect(),
            ending: vk::CommandBuffer::null(),
            maps_own_memory,
            timeline: vk::Semaphore::null(),
            queue: Mutex::new(Queue {
                handle: queue,
                pool: vk::CommandPool::null(),
                submitted: 0,
            }),
            reached: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        };
        device
            .furnish(family)
            .map_err(failed("creation of a queue's objects"))?;
        Ok(Arc::new(device))
    }

    fn furnish(&mut self, family: u32) -> Result<(), vk::Result> {
        let ranges = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(size_of::<Args>() as u32)];
        let layout = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let semaphore = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        let pool = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
            .queue_family_index(family);
        // SAFETY: the device lives, and what the structures point to, too; nobody else has the pool yet.
        unsafe {
            let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.layout = self.handle.create_pipeline_layout(&layout, None)?;
            self.timeline = self.handle.create_semaphore(&semaphore, None)?;
            queue.pool = self.handle.create_command_pool(&pool, None)?;
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(queue.pool)
                .command_buffer_count(1);
            let buffers = self.handle.allocate_command_buffers(&info)?;
            self.ending = *buffers.first().ok_or(vk::Result::ERROR_UNKNOWN)?;
            write_ending(self, self.ending)
        }
    }

    /// The queue, for one thread.
    pub(super) fn with_queue<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut queue)
    }

    /// Submits recorded commands, in order; the value that the timeline has when they are done.
    pub(super) fn submit(&self, commands: &[vk::CommandBuffer]) -> Result<u64, GpuError> {
        if self.is_stuck() {
            // It still runs what nobody waits for any more.
            return Err(self.abandoned());
        }
        self.with_queue(|queue| {
            let value = queue.submitted + 1;
            let (values, semaphores) = ([value], [self.timeline]);
            let mut timeline =
                vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
            let submit = [vk::SubmitInfo::default()
                .command_buffers(commands)
                .signal_semaphores(&semaphores)
                .push_next(&mut timeline)];
            // SAFETY: the queue is locked; the commands were recorded on this device, and whoever submits them waits for
            // the value before it frees them.
            let submitted = unsafe {
                self.handle
                    .queue_submit(queue.handle, &submit, vk::Fence::null())
            };
            submitted.map_err(|code| self.failed("submission", code))?;
            queue.submitted = value;
            Ok(value)
        })
    }

    /// Waits until what a submission gave is reached.
    pub(crate) fn wait(&self, value: u64, patience: Duration) -> Result<(), GpuError> {
        match self.reaches(value, patience)? {
            true => Ok(()),
            false => Err(self.given_up(patience)),
        }
    }

    /// As [`wait`](Self::wait), and no longer than until `cancel` is set.
    pub(crate) fn wait_unless(
        &self,
        value: u64,
        patience: Duration,
        cancel: &AtomicBool,
    ) -> Result<(), GpuError> {
        let start = Instant::now();
        while !self.reaches(value, INTERVAL.min(patience))? {
            let waited = start.elapsed();
            if waited >= patience || cancel.load(Ordering::Relaxed) {
                return Err(self.given_up(waited));
            }
        }
        Ok(())
    }

    /// Whether the timeline reaches a value in time.
    fn reaches(&self, value: u64, time: Duration) -> Result<bool, GpuError> {
        if value <= self.reached.load(Ordering::Relaxed) {
            return Ok(true);
        }
        if self.is_stuck() {
            // Whoever waited before has waited for all.
            return Err(self.abandoned());
        }
        let (semaphores, values) = ([self.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default()
            .semaphores(&semaphores)
            .values(&values);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the semaphore is the device's.
        match unsafe { self.handle.wait_semaphores(&info, nanoseconds) } {
            Ok(()) => {
                self.reached.fetch_max(value, Ordering::Relaxed);
                Ok(true)
            }
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(code) => Err(self.failed("wait", code)),
        }
    }

    /// Nobody will see the end of what was submitted.
    fn given_up(&self, waited: Duration) -> GpuError {
        self.stuck.store(true, Ordering::Relaxed);
        GpuError::Late {
            device: self.candidate.name.clone(),
            seconds: waited.as_secs(),
        }
    }

    fn abandoned(&self) -> GpuError {
        GpuError::Lost {
            device: self.candidate.name.clone(),
            call: "a wait before",
        }
    }

    /// Whether the device may still use what it was given for a submission that nobody saw the end of.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Whether nothing that was made on the device can run again.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_stuck() || self.lost.load(Ordering::Relaxed)
    }

    /// An error of a call. A device that is lost once stays so.
    pub(super) fn failed(&self, call: &'static str, code: vk::Result) -> GpuError {
        if code == vk::Result::ERROR_DEVICE_LOST {
            self.lost.store(true, Ordering::Relaxed);
        }
        vulkan_error(&self.candidate.name, call, code)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_stuck() {
            // The instance must outlive a device that is not destroyed.
            std::mem::forget(Arc::clone(&self.instance));
            return;
        }
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: memories, pipelines and recordings hold the device, so none is left; the device is idle before its own
        // objects go, or lost, which is as good.
        unsafe {
            let _ = self.handle.device_wait_idle();
            self.handle.destroy_command_pool(queue.pool, None);
            self.handle.destroy_semaphore(self.timeline, None);
            self.handle.destroy_pipeline_layout(self.layout, None);
            self.handle.destroy_device(None);
        }
    }
}
