//! A device with its layer: the functions that count, and that refuse or damage by the plan.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use ash::vk;

use super::book::{Allocation, Book, Submission, Wait};
use super::damage::Before;
use super::link::Missing;
use super::{DEVICES, device_of, function, key, locked};
use crate::plan::{Occasion, VkFault};

/// A device, and the functions of the layer below.
pub(super) struct LayerDevice {
    handle: vk::Device,
    pub(super) below: vk::PFN_vkGetDeviceProcAddr,
    calls: ash::DeviceFnV1_0,
    wait: vk::PFN_vkWaitSemaphores,
    book: Mutex<Book>,
}

type Callbacks<'a> = *const vk::AllocationCallbacks<'a>;

impl LayerDevice {
    /// # Safety
    ///
    /// The device is alive and made by the layer below.
    pub(super) unsafe fn new(
        handle: vk::Device,
        below: vk::PFN_vkGetDeviceProcAddr,
        book: Book,
    ) -> Self {
        let load = |name: &std::ffi::CStr| -> *const c_void {
            // SAFETY: the caller's.
            let found = unsafe { below(handle, name.as_ptr()) };
            found.map_or(std::ptr::null(), |found| found as *const c_void)
        };
        Self {
            handle,
            below,
            calls: ash::DeviceFnV1_0::load(load),
            wait: ash::DeviceFnV1_2::load(load).wait_semaphores,
            book: Mutex::new(book),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        locked(&self.book)
    }

    /// The result of a call that finds the device lost. A device that is lost runs nothing any more, so what it was given may
    /// be freed; this one runs to its end first.
    fn lost(&self) -> vk::Result {
        // SAFETY: the device is alive, as one of its calls is under way. Nobody else uses its queue meanwhile but to submit,
        // which drivers that are asked here do under a lock of their own.
        let _ = unsafe { (self.calls.device_wait_idle)(self.handle) };
        vk::Result::ERROR_DEVICE_LOST
    }
}

/// The layer's own function of a name.
pub(super) fn own_function(name: &[u8]) -> Missing {
    match name {
        b"vkDestroyDevice" => function!(destroy_device, vk::PFN_vkDestroyDevice),
        b"vkQueueSubmit" => function!(queue_submit, vk::PFN_vkQueueSubmit),
        b"vkWaitSemaphores" | b"vkWaitSemaphoresKHR" => {
            function!(wait_semaphores, vk::PFN_vkWaitSemaphores)
        }
        b"vkAllocateMemory" => function!(allocate_memory, vk::PFN_vkAllocateMemory),
        b"vkFreeMemory" => function!(free_memory, vk::PFN_vkFreeMemory),
        b"vkMapMemory" => function!(map_memory, vk::PFN_vkMapMemory),
        b"vkUnmapMemory" => function!(unmap_memory, vk::PFN_vkUnmapMemory),
        b"vkCreateBuffer" => function!(create_buffer, vk::PFN_vkCreateBuffer),
        b"vkDestroyBuffer" => function!(destroy_buffer, vk::PFN_vkDestroyBuffer),
        b"vkCreateShaderModule" => function!(create_module, vk::PFN_vkCreateShaderModule),
        b"vkDestroyShaderModule" => function!(destroy_module, vk::PFN_vkDestroyShaderModule),
        b"vkCreateComputePipelines" => {
            function!(create_pipelines, vk::PFN_vkCreateComputePipelines)
        }
        b"vkDestroyPipeline" => function!(destroy_pipeline, vk::PFN_vkDestroyPipeline),
        b"vkAllocateCommandBuffers" => {
            function!(allocate_commands, vk::PFN_vkAllocateCommandBuffers)
        }
        b"vkFreeCommandBuffers" => function!(free_commands, vk::PFN_vkFreeCommandBuffers),
        _ => None,
    }
}

/// A device that the layer knows; a call for another is refused with this result, if it has one.
macro_rules! known {
    ($handle:expr $(, $otherwise:expr)?) => {
        // SAFETY: the handle is one of a live device or of its queue, as Vulkan asks of every caller.
        match device_of(unsafe { key($handle) }) {
            Some(device) => device,
            None => return $($otherwise)?,
        }
    };
}

const UNKNOWN: vk::Result = vk::Result::ERROR_DEVICE_LOST;

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn destroy_device(handle: vk::Device, callbacks: Callbacks<'_>) {
    if handle == vk::Device::null() {
        return;
    }
    let device = known!(handle);
    // SAFETY: the caller's; the device is alive until the layer below destroys it.
    unsafe {
        locked(&DEVICES).remove(&key(handle));
        (device.calls.destroy_device)(handle, callbacks);
    }
    device.book().end();
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn queue_submit(
    queue: vk::Queue,
    count: u32,
    submits: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let device = known!(queue, UNKNOWN);
    // SAFETY: the caller's structures.
    let value = unsafe { signalled(count, submits) };
    let mut book = device.book();
    match book.submission(value) {
        // SAFETY: the caller's.
        Submission::Carried => unsafe {
            drop(book);
            (device.calls.queue_submit)(queue, count, submits, fence)
        },
        Submission::Withheld => vk::Result::SUCCESS,
        Submission::Lost => device.lost(),
        // SAFETY: the caller's; the queue, which is the only one, is idle before memories are read and written, and whoever
        // reads what was submitted waits for this call first.
        Submission::Damaged => unsafe {
            let calls = &device.calls;
            // A device that is lost says so to whoever waits for the submission.
            let _ = (calls.queue_wait_idle)(queue);
            let before = Before::note(calls, device.handle, &book.memories);
            let submitted = (calls.queue_submit)(queue, count, submits, fence);
            let _ = (calls.queue_wait_idle)(queue);
            before.damage(calls, device.handle, &book.memories);
            submitted
        },
    }
}

/// The largest value of a timeline that submissions signal.
///
/// # Safety
///
/// The structures are a caller's of `vkQueueSubmit`.
unsafe fn signalled(count: u32, submits: *const vk::SubmitInfo<'_>) -> u64 {
    let mut largest = 0;
    for index in 0..count as usize {
        // SAFETY: there are as many, each with a chain of structures that begin with their kind; one of this kind has as many
        // values as it says.
        unsafe {
            let mut at = (*submits.add(index))
                .p_next
                .cast::<vk::BaseInStructure<'_>>();
            while !at.is_null() {
                if (*at).s_type == vk::StructureType::TIMELINE_SEMAPHORE_SUBMIT_INFO {
                    let info = &*at.cast::<vk::TimelineSemaphoreSubmitInfo<'_>>();
                    for value in 0..info.signal_semaphore_value_count as usize {
                        largest = largest.max(*info.p_signal_semaphore_values.add(value));
                    }
                }
                at = (*at).p_next;
            }
        }
    }
    largest
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn wait_semaphores(
    handle: vk::Device,
    info: *const vk::SemaphoreWaitInfo<'_>,
    nanoseconds: u64,
) -> vk::Result {
    let device = known!(handle, UNKNOWN);
    // SAFETY: the caller's structure, with as many values as it says.
    let values = unsafe {
        let info = &*info;
        (0..info.semaphore_count as usize).map(|at| *info.p_values.add(at))
    };
    let value = values.max().unwrap_or(0);
    let given = Duration::from_nanos(nanoseconds);
    let outcome = device.book().wait(value);
    let left = match outcome {
        Wait::Lost => return device.lost(),
        Wait::Silent(time) if time > given => {
            thread::sleep(given);
            return vk::Result::TIMEOUT;
        }
        Wait::Silent(time) => {
            thread::sleep(time);
            given - time
        }
        Wait::Asked => given,
    };
    let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the caller's.
    unsafe { (device.wait)(handle, info, left) }
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn allocate_memory(
    handle: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    callbacks: Callbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    let device = known!(handle, UNKNOWN);
    // SAFETY: the caller's structures.
    let is_imported = unsafe { imports(info) };
    let mut book = device.book();
    if book.due(Occasion::Allocation).is_some() {
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    }
    if is_imported && book.due(Occasion::Import).is_some() {
        std::process::abort();
    }
    // SAFETY: the caller's.
    unsafe {
        let made = (device.calls.allocate_memory)(handle, info, callbacks, memory);
        if made != vk::Result::SUCCESS {
            return made;
        }
        let bytes = (*info).allocation_size;
        book.counts.allocations += 1;
        match is_imported {
            true => book.counts.imported_bytes += bytes,
            false => book.counts.allocated_bytes += bytes,
        }
        let allocation = Allocation {
            bytes,
            is_imported,
            mapped: None,
        };
        book.memories.insert(*memory, allocation);
        made
    }
}

/// Whether memory is to consist of pages of the host.
///
/// # Safety
///
/// The structure is a caller's of `vkAllocateMemory`.
unsafe fn imports(info: *const vk::MemoryAllocateInfo<'_>) -> bool {
    // SAFETY: a chain of structures, each of which begins with its kind and a pointer to the next.
    unsafe {
        let mut at = (*info).p_next.cast::<vk::BaseInStructure<'_>>();
        while !at.is_null() {
            if (*at).s_type == vk::StructureType::IMPORT_MEMORY_HOST_POINTER_INFO_EXT {
                return true;
            }
            at = (*at).p_next;
        }
    }
    false
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn free_memory(
    handle: vk::Device,
    memory: vk::DeviceMemory,
    callbacks: Callbacks<'_>,
) {
    let device = known!(handle);
    device.book().memories.remove(&memory);
    // SAFETY: the caller's.
    unsafe { (device.calls.free_memory)(handle, memory, callbacks) };
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn map_memory(
    handle: vk::Device,
    memory: vk::DeviceMemory,
    offset: u64,
    bytes: u64,
    flags: vk::MemoryMapFlags,
    address: *mut *mut c_void,
) -> vk::Result {
    let device = known!(handle, UNKNOWN);
    let mut book = device.book();
    // SAFETY: the caller's; the address is there once it is mapped.
    unsafe {
        let mapped = (device.calls.map_memory)(handle, memory, offset, bytes, flags, address);
        if mapped == vk::Result::SUCCESS
            && let Some(known) = book.memories.get_mut(&memory)
        {
            let start = (*address).cast::<u8>().wrapping_sub(offset as usize);
            known.mapped = Some(start.expose_provenance());
        }
        mapped
    }
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn unmap_memory(handle: vk::Device, memory: vk::DeviceMemory) {
    let device = known!(handle);
    if let Some(known) = device.book().memories.get_mut(&memory) {
        known.mapped = None;
    }
    // SAFETY: the caller's.
    unsafe { (device.calls.unmap_memory)(handle, memory) };
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn create_buffer(
    handle: vk::Device,
    info: *const vk::BufferCreateInfo<'_>,
    callbacks: Callbacks<'_>,
    buffer: *mut vk::Buffer,
) -> vk::Result {
    let device = known!(handle, UNKNOWN);
    // SAFETY: the caller's.
    let made = unsafe { (device.calls.create_buffer)(handle, info, callbacks, buffer) };
    device.book().counts.buffers_left += u64::from(made == vk::Result::SUCCESS);
    made
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn destroy_buffer(
    handle: vk::Device,
    buffer: vk::Buffer,
    callbacks: Callbacks<'_>,
) {
    let device = known!(handle);
    // SAFETY: the caller's.
    unsafe { (device.calls.destroy_buffer)(handle, buffer, callbacks) };
    let left = &mut device.book().counts.buffers_left;
    *left = left.saturating_sub(u64::from(buffer != vk::Buffer::null()));
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn create_module(
    handle: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    callbacks: Callbacks<'_>,
    module: *mut vk::ShaderModule,
) -> vk::Result {
    let device = known!(handle, UNKNOWN);
    // SAFETY: the caller's.
    let made = unsafe { (device.calls.create_shader_module)(handle, info, callbacks, module) };
    device.book().counts.modules_left += u64::from(made == vk::Result::SUCCESS);
    made
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn destroy_module(
    handle: vk::Device,
    module: vk::ShaderModule,
    callbacks: Callbacks<'_>,
) {
    let device = known!(handle);
    // SAFETY: the caller's.
    unsafe { (device.calls.destroy_shader_module)(handle, module, callbacks) };
    let left = &mut device.book().counts.modules_left;
    *left = left.saturating_sub(u64::from(module != vk::ShaderModule::null()));
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn create_pipelines(
    handle: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    callbacks: Callbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    let device = known!(handle, UNKNOWN);
    let fault = device.book().due(Occasion::Pipeline);
    match fault {
        Some(VkFault::CrashAtPipeline) => std::process::abort(),
        Some(VkFault::HangAtPipeline) => loop {
            thread::sleep(Duration::from_secs(1));
        },
        Some(_) => {
            // SAFETY: the caller has room for as many.
            unsafe { pipelines.write_bytes(0, count as usize) };
            return vk::Result::ERROR_OUT_OF_HOST_MEMORY;
        }
        None => {}
    }
    let create = device.calls.create_compute_pipelines;
    // SAFETY: the caller's.
    let made = unsafe { create(handle, cache, count, infos, callbacks, pipelines) };
    if made == vk::Result::SUCCESS {
        let counts = &mut device.book().counts;
        counts.pipelines += u64::from(count);
        counts.pipelines_left += u64::from(count);
    }
    made
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn destroy_pipeline(
    handle: vk::Device,
    pipeline: vk::Pipeline,
    callbacks: Callbacks<'_>,
) {
    let device = known!(handle);
    // SAFETY: the caller's.
    unsafe { (device.calls.destroy_pipeline)(handle, pipeline, callbacks) };
    let left = &mut device.book().counts.pipelines_left;
    *left = left.saturating_sub(u64::from(pipeline != vk::Pipeline::null()));
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn allocate_commands(
    handle: vk::Device,
    info: *const vk::CommandBufferAllocateInfo<'_>,
    commands: *mut vk::CommandBuffer,
) -> vk::Result {
    let device = known!(handle, UNKNOWN);
    // SAFETY: the caller's.
    unsafe {
        let made = (device.calls.allocate_command_buffers)(handle, info, commands);
        if made == vk::Result::SUCCESS {
            device.book().counts.commands_left += u64::from((*info).command_buffer_count);
        }
        made
    }
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn free_commands(
    handle: vk::Device,
    pool: vk::CommandPool,
    count: u32,
    commands: *const vk::CommandBuffer,
) {
    let device = known!(handle);
    // SAFETY: the caller's.
    unsafe { (device.calls.free_command_buffers)(handle, pool, count, commands) };
    let left = &mut device.book().counts.commands_left;
    *left = left.saturating_sub(u64::from(count));
}
