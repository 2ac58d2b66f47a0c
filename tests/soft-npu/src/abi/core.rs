//! Structures and constants of Level Zero itself.

use std::ffi::{c_char, c_void};

use super::Head;

/// `ze_intel_npu_driver_uuid`: the plugin takes no other driver (plugin, `utils/src/zero/zero_init.cpp`).
pub(crate) const DRIVER_UUID: [u8; 16] = [
    0x01, 0x7d, 0xe9, 0x31, 0x6b, 0x4d, 0x4f, 0xd4, 0xaa, 0x9b, 0x5b, 0xed, 0x77, 0xfc, 0x8e, 0x89,
];

/// `ze_intel_npu_device_uuid`.
pub(crate) const DEVICE_UUID: [u8; 16] = [
    0x80, 0xd1, 0xd1, 0x1e, 0xb7, 0x38, 0x11, 0xea, 0xb3, 0xde, 0x02, 0x42, 0xac, 0x13, 0x00, 0x04,
];

pub(crate) const STYPE_IMPORT_FD: u32 = 0x19;
pub(crate) const STYPE_MEMMAP_SYSMEM: u32 = 0x2_0037;
pub(crate) const STYPE_MUTABLE_GRAPH_ARGUMENT: u32 = 0x2_0020;
/// The same, in the first versions of the extension.
pub(crate) const STYPE_MUTABLE_GRAPH_ARGUMENT_OLD: u32 = 0x7;

/// `zel_component_version_t`.
#[repr(C)]
pub(crate) struct ComponentVersion {
    pub(crate) name: [c_char; 64],
    pub(crate) spec: u32,
    pub(crate) lib: [i32; 3],
}

/// `ze_driver_properties_t`.
#[repr(C)]
pub(crate) struct DriverProperties {
    pub(crate) head: Head,
    pub(crate) uuid: [u8; 16],
    pub(crate) version: u32,
}

/// `ze_driver_extension_properties_t`.
#[repr(C)]
pub(crate) struct ExtensionProperties {
    pub(crate) name: [c_char; 256],
    pub(crate) version: u32,
}

/// `ze_device_properties_t`.
#[repr(C)]
pub(crate) struct DeviceProperties {
    pub(crate) head: Head,
    pub(crate) kind: u32,
    pub(crate) vendor: u32,
    pub(crate) device: u32,
    pub(crate) flags: u32,
    pub(crate) subdevice: u32,
    pub(crate) core_clock_rate: u32,
    pub(crate) max_mem_alloc_size: u64,
    pub(crate) max_hardware_contexts: u32,
    pub(crate) max_command_queue_priority: u32,
    pub(crate) num_threads_per_eu: u32,
    pub(crate) physical_eu_simd_width: u32,
    pub(crate) num_eus_per_subslice: u32,
    pub(crate) num_subslices_per_slice: u32,
    pub(crate) num_slices: u32,
    pub(crate) timer_resolution: u64,
    pub(crate) timestamp_valid_bits: u32,
    pub(crate) kernel_timestamp_valid_bits: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) name: [c_char; 256],
}

pub(crate) const DEVICE_TYPE_VPU: u32 = 5;
pub(crate) const DEVICE_FLAG_INTEGRATED: u32 = 1;

/// `ze_pci_ext_properties_t`.
#[repr(C)]
pub(crate) struct PciProperties {
    pub(crate) head: Head,
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) function: u32,
    pub(crate) generation: i32,
    pub(crate) width: i32,
    pub(crate) bandwidth: i64,
}

/// `ze_command_queue_group_properties_t`.
#[repr(C)]
pub(crate) struct QueueGroupProperties {
    pub(crate) head: Head,
    pub(crate) flags: u32,
    pub(crate) max_memory_fill_pattern_size: usize,
    pub(crate) num_queues: u32,
}

pub(crate) const QUEUE_GROUP_COMPUTE: u32 = 1;
pub(crate) const QUEUE_GROUP_COPY: u32 = 2;

/// `ze_device_external_memory_properties_t`.
#[repr(C)]
pub(crate) struct ExternalMemoryProperties {
    pub(crate) head: Head,
    pub(crate) allocation_import: u32,
    pub(crate) allocation_export: u32,
    pub(crate) image_import: u32,
    pub(crate) image_export: u32,
}

pub(crate) const EXTERNAL_DMA_BUF: u32 = 2;
pub(crate) const EXTERNAL_STANDARD_ALLOCATION: u32 = 0x100;

/// `ze_command_queue_desc_t`.
#[repr(C)]
pub(crate) struct QueueDesc {
    pub(crate) head: Head,
    pub(crate) ordinal: u32,
    pub(crate) index: u32,
    pub(crate) flags: u32,
    pub(crate) mode: u32,
    pub(crate) priority: u32,
}

/// `ze_command_queue_desc_npu_ext_t` (stype 1, a boolean) or `_2_t` (stype 2, flags).
#[repr(C)]
pub(crate) struct QueueNpuDesc {
    pub(crate) head: Head,
    pub(crate) options: u32,
}

/// `ze_command_list_desc_t`.
#[repr(C)]
pub(crate) struct ListDesc {
    pub(crate) head: Head,
    pub(crate) ordinal: u32,
    pub(crate) flags: u32,
}

/// `ze_mutable_command_id_exp_desc_t`.
#[repr(C)]
pub(crate) struct MutableCommandIdDesc {
    pub(crate) head: Head,
    pub(crate) flags: u32,
}

/// `ze_mutable_graph_argument_exp_desc_t`.
#[repr(C)]
pub(crate) struct MutableGraphArgument {
    pub(crate) head: Head,
    pub(crate) command: u64,
    pub(crate) index: u32,
    pub(crate) value: *const c_void,
}

/// `ze_host_mem_alloc_desc_t`.
#[repr(C)]
pub(crate) struct HostMemDesc {
    pub(crate) head: Head,
    pub(crate) flags: u32,
}

pub(crate) const HOST_MEM_WRITE_COMBINED: u32 = 4;

/// `ze_external_memmap_sysmem_ext_desc_t`.
#[repr(C)]
pub(crate) struct SystemMemory {
    pub(crate) head: Head,
    pub(crate) start: *mut c_void,
    pub(crate) size: u64,
}

/// `ze_memory_allocation_properties_t`.
#[repr(C)]
pub(crate) struct AllocationProperties {
    pub(crate) head: Head,
    pub(crate) kind: u32,
    pub(crate) id: u64,
    pub(crate) page_size: u64,
}
