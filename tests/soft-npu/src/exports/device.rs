//! The device and the context.

use std::ffi::c_void;

use super::loader::note_held;
use super::{CONTEXT, DEVICE};
use crate::abi::core::{
    DEVICE_FLAG_INTEGRATED, DEVICE_TYPE_VPU, DEVICE_UUID, DeviceProperties, EXTERNAL_DMA_BUF,
    EXTERNAL_STANDARD_ALLOCATION, ExternalMemoryProperties, PciProperties, QUEUE_GROUP_COMPUTE,
    QUEUE_GROUP_COPY, QueueGroupProperties,
};
use crate::abi::{Code, DEVICE_LOST, Handle, answer, list, place, put};
use crate::fault::{FaultPoint, fails};
use crate::settings::{MachinePart, has, settings};

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDeviceGet(_: Handle, count: *mut u32, out: *mut Handle) -> Code {
    // SAFETY: as the module above says of a caller's pointers.
    answer(|| unsafe { list(count, out, 1, |_, out| *out = DEVICE) })
}

/// Driver, `level_zero_driver/source/device.cpp`, `getProperties`.
#[unsafe(no_mangle)]
unsafe extern "C" fn zeDeviceGetProperties(_: Handle, out: *mut DeviceProperties) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        let machine = settings().machine;
        out.kind = DEVICE_TYPE_VPU;
        out.vendor = INTEL;
        out.device = machine.device_id;
        out.flags = DEVICE_FLAG_INTEGRATED;
        out.subdevice = machine.stepping;
        out.core_clock_rate = CLOCK_MHZ;
        out.max_mem_alloc_size = MEMORY_BYTES;
        out.max_hardware_contexts = 128;
        out.max_command_queue_priority = 0;
        out.num_threads_per_eu = 1;
        out.physical_eu_simd_width = machine.simd_width;
        out.num_eus_per_subslice = 1;
        out.num_subslices_per_slice = 1;
        out.num_slices = machine.tiles;
        out.timer_resolution = 26;
        out.timestamp_valid_bits = 64;
        out.kernel_timestamp_valid_bits = 0;
        out.uuid = DEVICE_UUID;
        put(&mut out.name, "Intel(R) AI Boost (software)");
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDevicePciGetPropertiesExt(_: Handle, out: *mut PciProperties) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        (out.domain, out.bus, out.device, out.function) = (0, 0, 11, 0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDeviceGetCommandQueueGroupProperties(
    _: Handle,
    count: *mut u32,
    out: *mut QueueGroupProperties,
) -> Code {
    let fill = |_, out: &mut QueueGroupProperties| {
        out.flags = QUEUE_GROUP_COMPUTE | QUEUE_GROUP_COPY;
        out.max_memory_fill_pattern_size = 1;
        out.num_queues = 1;
    };
    // SAFETY: as the module above says of a caller's pointers.
    answer(|| unsafe { list(count, out, 1, fill) })
}

/// Driver, `level_zero_driver/source/device.cpp`, `getGetExternalMemoryProperties`.
#[unsafe(no_mangle)]
unsafe extern "C" fn zeDeviceGetExternalMemoryProperties(
    _: Handle,
    out: *mut ExternalMemoryProperties,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        out.allocation_import = match has(MachinePart::PageImport) {
            true => EXTERNAL_DMA_BUF | EXTERNAL_STANDARD_ALLOCATION,
            false => EXTERNAL_DMA_BUF,
        };
        out.allocation_export = EXTERNAL_DMA_BUF;
        (out.image_import, out.image_export) = (0, 0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeDeviceGetStatus(_: Handle) -> Code {
    answer(|| match fails(FaultPoint::Status) {
        true => Err(DEVICE_LOST),
        false => Ok(()),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeContextCreate(_: Handle, _: *const c_void, out: *mut Handle) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        *unsafe { place(out) }? = CONTEXT;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeContextDestroy(_: Handle) -> Code {
    note_held("context-destroy");
    0
}

/// PCI's number of the vendor.
const INTEL: u32 = 0x8086;

/// Chosen: the highest clock that the compiler tabulates for 3720.
const CLOCK_MHZ: u32 = 1300;

/// Chosen, for all platforms.
const MEMORY_BYTES: u64 = 4 << 30;
