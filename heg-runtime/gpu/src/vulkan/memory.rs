//! Memory that modules reach by address, and the copies between it and the host.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use super::device::Device;
use crate::error::GpuError;

/// The best place for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The place that the device reads and writes fastest.
    Device,
    /// A place that the host reads and writes without a copy.
    Host,
    /// Memory that the host writes without a copy, and that the device reads fastest.
    Written,
    /// Memory that both read and write where it lies, at the speed of memory.
    Shared,
}

/// A buffer with memory of its own, or over imported pages.
pub(crate) struct Memory {
    device: Arc<Device>,
    pub(super) buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    address: u64,
    bytes: u64,
    /// Address at which the host has it, if it does.
    mapped: Option<NonNull<u8>>,
    /// Owner of imported pages.
    _pages: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: handles may be used by any thread, and the host's bytes are only copied by calls that say who waits for whom.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

const VISIBLE: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

/// Memory that the host reads at the speed of memory.
const CACHED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    VISIBLE.as_raw() | vk::MemoryPropertyFlags::HOST_CACHED.as_raw(),
);

/// The longest time of a copy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that are copied by way of the host's memory at once.
const STAGING_BYTES: u64 = 16 << 20;

impl Memory {
    /// Memory of the device, at least one word of it; what it holds is not said.
    pub(crate) fn new(device: &Arc<Device>, bytes: u64, kind: Kind) -> Result<Arc<Self>, GpuError> {
        let bytes = bytes.max(4).next_multiple_of(4);
        let info = vk::BufferCreateInfo::default().size(bytes).usage(USAGE);
        let failed = |code| device.failed("allocation of memory", code);
        // SAFETY: the device lives. Dropping the memory frees what is there, and null handles may be freed.
        let buffer = unsafe { device.handle.create_buffer(&info, None) }.map_err(failed)?;
        let mut made = Self::empty(device, buffer, bytes);
        // SAFETY: the buffer is the device's.
        let needs = unsafe { device.handle.get_buffer_memory_requirements(buffer) };
        let wanted = match kind {
            Kind::Device => [
                vk::MemoryPropertyFlags::DEVICE_LOCAL,
                vk::MemoryPropertyFlags::empty(),
            ],
            Kind::Host => [CACHED, VISIBLE],
            Kind::Shared => [CACHED | vk::MemoryPropertyFlags::DEVICE_LOCAL, CACHED],
            Kind::Written => [VISIBLE | vk::MemoryPropertyFlags::DEVICE_LOCAL, VISIBLE],
        };
        let (index, flags) = memory_type(device, needs.memory_type_bits, &wanted)?;
        let mut addresses =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(index)
            .push_next(&mut addresses);
        // SAFETY: size and type are what the buffer needs, and the memory is bound once.
        unsafe {
            made.memory = device.handle.allocate_memory(&info, None).map_err(failed)?;
            made.bind()?;
            if flags.contains(VISIBLE) && (kind != Kind::Device || device.maps_own_memory) {
                let none = vk::MemoryMapFlags::empty();
                let mapped = device
                    .handle
                    .map_memory(made.memory, 0, vk::WHOLE_SIZE, none);
                made.mapped = NonNull::new(mapped.map_err(failed)?.cast());
            }
        }
        Ok(Arc::new(made))
    }

    /// Pages of the host as memory of the device, if its driver takes them. They are only read.
    ///
    /// # Safety
    ///
    /// The bytes from `start` on stay mapped and unchanged for as long as `owner` lives; both are whole pages.
    pub(crate) unsafe fn import(
        device: &Arc<Device>,
        start: *const u8,
        bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, GpuError> {
        let any = [vk::MemoryPropertyFlags::empty()];
        // SAFETY: the caller's.
        unsafe { Self::of_pages(device, start, bytes, owner, &any) }.map(Arc::new)
    }

    /// Pages like those of [`import`](Self::import), which the host and the device both read and write.
    ///
    /// # Safety
    ///
    /// The bytes from `start` on stay mapped for as long as `owner` lives, and may be written; both are whole pages. The
    /// host reads and writes them by raw pointers alone.
    pub(crate) unsafe fn import_written(
        device: &Arc<Device>,
        start: *const u8,
        bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, GpuError> {
        // SAFETY: the caller's.
        let made = unsafe { Self::of_pages(device, start, bytes, owner, &[CACHED, VISIBLE]) };
        made.map(|mut made| {
            made.mapped = NonNull::new(start.cast_mut());
            Arc::new(made)
        })
    }

    /// # Safety
    ///
    /// As [`import`](Self::import), or as [`import_written`](Self::import_written).
    unsafe fn of_pages(
        device: &Arc<Device>,
        start: *const u8,
        bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
        wanted: &[vk::MemoryPropertyFlags],
    ) -> Result<Self, GpuError> {
        let failed = |code| device.failed("import of pages", code);
        let absent = || failed(vk::Result::ERROR_EXTENSION_NOT_PRESENT);
        let import = device.import.as_ref().ok_or_else(absent)?;
        let handle = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut pages = vk::MemoryHostPointerPropertiesEXT::default();
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handle);
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(USAGE)
            .push_next(&mut external);
        // SAFETY: the caller vouches for the pages, and their owner is kept for as long as the memory.
        unsafe {
            let ask = import.fp().get_memory_host_pointer_properties_ext;
            let asked = ask(device.handle.handle(), handle, start.cast(), &mut pages);
            asked.result().map_err(failed)?;
            let buffer = device.handle.create_buffer(&info, None).map_err(failed)?;
            let mut made = Self::empty(device, buffer, bytes);
            made._pages = Some(owner);
            let needs = device.handle.get_buffer_memory_requirements(buffer);
            let allowed = needs.memory_type_bits & pages.memory_type_bits;
            let (index, _) = memory_type(device, allowed, wanted)?;
            let mut addresses = vk::MemoryAllocateFlagsInfo::default()
                .flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
            let mut pointer = vk::ImportMemoryHostPointerInfoEXT::default()
                .handle_type(handle)
                .host_pointer(start.cast_mut().cast::<c_void>());
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(bytes)
                .memory_type_index(index)
                .push_next(&mut addresses)
                .push_next(&mut pointer);
            made.memory = device.handle.allocate_memory(&info, None).map_err(failed)?;
            made.bind()?;
            Ok(made)
        }
    }

    fn empty(device: &Arc<Device>, buffer: vk::Buffer, bytes: u64) -> Self {
        Self {
            device: Arc::clone(device),
            buffer,
            memory: vk::DeviceMemory::null(),
            address: 0,
            bytes,
            mapped: None,
            _pages: None,
        }
    }

    /// # Safety
    ///
    /// The memory was allocated for the buffer, and nothing is bound yet.
    unsafe fn bind(&mut self) -> Result<(), GpuError> {
        let calls = &self.device.handle;
        let info = vk::BufferDeviceAddressInfo::default().buffer(self.buffer);
        // SAFETY: the caller's; the buffer was made for addresses.
        unsafe {
            let bound = calls.bind_buffer_memory(self.buffer, self.memory, 0);
            bound.map_err(|code| self.device.failed("binding of memory", code))?;
            self.address = calls.get_buffer_device_address(&info);
        }
        Ok(())
    }

    /// Address at which modules find it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Address at which the host reaches it without a copy, if it does.
    pub(crate) fn mapped(&self) -> Option<NonNull<u8>> {
        self.mapped
    }

    /// Whether it is a device's.
    pub(crate) fn is_on(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Whether the host reaches it without a copy.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes bytes. The caller has waited for whatever reads or writes them.
    pub(crate) fn write(&self, first: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.check(first, bytes.len())?;
        if let Some(mapped) = self.mapped {
            // SAFETY: the range lies within the mapped memory, and the slice is the host's own.
            unsafe {
                let to = mapped.as_ptr().add(first as usize);
                to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            return Ok(());
        }
        let size = STAGING_BYTES.min(bytes.len() as u64);
        let staging = Self::new(&self.device, size, Kind::Host)?;
        for (index, part) in bytes.chunks(STAGING_BYTES as usize).enumerate() {
            staging.write(0, part)?;
            let at = first + index as u64 * STAGING_BYTES;
            copy(&staging, 0, self, at, part.len() as u64)?;
        }
        Ok(())
    }

    /// Reads bytes. The caller has waited for whatever writes them.
    pub(crate) fn read(&self, first: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.check(first, bytes.len())?;
        if let Some(mapped) = self.mapped {
            // SAFETY: as in `write`.
            unsafe {
                let from = mapped.as_ptr().add(first as usize);
                from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len());
            }
            return Ok(());
        }
        let size = STAGING_BYTES.min(bytes.len() as u64);
        let staging = Self::new(&self.device, size, Kind::Host)?;
        for (index, part) in bytes.chunks_mut(STAGING_BYTES as usize).enumerate() {
            let at = first + index as u64 * STAGING_BYTES;
            copy(self, at, &staging, 0, part.len() as u64)?;
            staging.read(0, part)?;
        }
        Ok(())
    }

    pub(super) fn check(&self, first: u64, bytes: usize) -> Result<(), GpuError> {
        let end = first.saturating_add(bytes as u64);
        match end <= self.bytes {
            true => Ok(()),
            false => Err(GpuError::Range {
                first,
                end,
                bytes: self.bytes,
            }),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.is_stuck() {
            if let Some(pages) = self._pages.take() {
                std::mem::forget(pages);
            }
            return;
        }
        // SAFETY: recordings hold their memories, and copies wait for their end, so the device uses it no more.
        unsafe {
            self.device.handle.destroy_buffer(self.buffer, None);
            self.device.handle.free_memory(self.memory, None);
        }
    }
}

/// The first type that is allowed and has all of the first of `wanted` that any has.
fn memory_type(
    device: &Device,
    allowed: u32,
    wanted: &[vk::MemoryPropertyFlags],
) -> Result<(u32, vk::MemoryPropertyFlags), GpuError> {
    let types = || (0_u32..).zip(&device.memory_types);
    let of = |wanted: &vk::MemoryPropertyFlags| {
        let mut types = types();
        let found =
            types.find(|(index, flags)| allowed >> index & 1 == 1 && flags.contains(*wanted));
        found.map(|(index, flags)| (index, *flags))
    };
    wanted
        .iter()
        .find_map(of)
        .ok_or_else(|| GpuError::NoMemoryType {
            device: device.candidate.name.clone(),
            needs: "both the host and the device reach",
        })
}

/// Copies within the device, and waits for it. Both ranges are checked.
pub(crate) fn copy(
    from: &Memory,
    from_first: u64,
    to: &Memory,
    to_first: u64,
    bytes: u64,
) -> Result<(), GpuError> {
    let device = &to.device;
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    from.check(from_first, size)?;
    to.check(to_first, size)?;
    let failed = |code| device.failed("copy", code);
    let regions = [vk::BufferCopy {
        src_offset: from_first,
        dst_offset: to_first,
        size: bytes,
    }];
    let calls = &device.handle;
    // SAFETY: the pool is locked; both ranges were checked above.
    let commands = device.with_queue(|queue| unsafe {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(queue.pool)
            .command_buffer_count(1);
        let commands = *calls
            .allocate_command_buffers(&info)?
            .first()
            .ok_or(vk::Result::ERROR_UNKNOWN)?;
        calls.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())?;
        let before = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::MEMORY_WRITE | vk::AccessFlags::HOST_WRITE)
            .dst_access_mask(vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE)];
        let behind = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::HOST_READ)];
        let (all, transfer) = (
            vk::PipelineStageFlags::ALL_COMMANDS | vk::PipelineStageFlags::HOST,
            vk::PipelineStageFlags::TRANSFER,
        );
        let none = vk::DependencyFlags::empty();
        calls.cmd_pipeline_barrier(commands, all, transfer, none, &before, &[], &[]);
        calls.cmd_copy_buffer(commands, from.buffer, to.buffer, &regions);
        calls.cmd_pipeline_barrier(commands, transfer, all, none, &behind, &[], &[]);
        calls.end_command_buffer(commands)?;
        Ok(commands)
    });
    let commands = commands.map_err(failed)?;
    let done = device
        .submit(&[commands])
        .and_then(|value| device.wait(value, PATIENCE));
    if !device.is_stuck() {
        // SAFETY: the commands are done, or were never begun; the pool is locked.
        device.with_queue(|queue| unsafe { calls.free_command_buffers(queue.pool, &[commands]) });
    }
    done
}
