//! Structures and constants of the NPU's extensions.

use std::ffi::{c_char, c_void};

use super::Head;

pub(crate) const STYPE_ARGUMENT_STRIDES_PROPERTY: u32 = 0x9;
pub(crate) const STYPE_ARGUMENT_TENSOR: u32 = 0xA;

/// `ze_graph_desc_2_t`.
#[repr(C)]
pub(crate) struct GraphDesc2 {
    pub(crate) head: Head,
    pub(crate) format: u32,
    pub(crate) size: usize,
    pub(crate) input: *const u8,
    pub(crate) build_flags: *const c_char,
    pub(crate) flags: u32,
}

pub(crate) const FORMAT_NATIVE: u32 = 1;
pub(crate) const GRAPH_PERSISTENT: u32 = 4;
pub(crate) const STAGE_INITIALIZE: u32 = 2;
pub(crate) const GRAPH_PRE_COMPILED: u32 = 4;
pub(crate) const GRAPH_NO_STANDARD_ALLOCATION: u32 = 8;

/// `ze_graph_properties_t`.
#[repr(C)]
pub(crate) struct GraphProperties {
    pub(crate) head: Head,
    pub(crate) num_args: u32,
}

/// `ze_graph_properties_2_t`.
#[repr(C)]
pub(crate) struct GraphProperties2 {
    pub(crate) head: Head,
    pub(crate) num_args: u32,
    pub(crate) init_stage: u32,
}

/// `ze_graph_properties_3_t`.
#[repr(C)]
pub(crate) struct GraphProperties3 {
    pub(crate) head: Head,
    pub(crate) num_args: u32,
    pub(crate) init_stage: u32,
    pub(crate) flags: u32,
}

pub(crate) const ARGUMENT_INPUT: u32 = 0;
pub(crate) const ARGUMENT_OUTPUT: u32 = 1;

/// `ze_graph_argument_properties_t`.
#[repr(C)]
pub(crate) struct ArgumentProperties {
    pub(crate) head: Head,
    pub(crate) name: [c_char; 256],
    pub(crate) kind: u32,
    pub(crate) dims: [u32; 5],
    pub(crate) network_precision: u32,
    pub(crate) network_layout: u32,
    pub(crate) device_precision: u32,
    pub(crate) device_layout: u32,
}

/// `ze_graph_argument_properties_3_t`.
#[repr(C)]
pub(crate) struct ArgumentProperties3 {
    pub(crate) first: ArgumentProperties,
    pub(crate) quant_reverse_scale: f32,
    pub(crate) quant_zero_point: u8,
    pub(crate) dims_count: u32,
    pub(crate) friendly_name: [c_char; 256],
    pub(crate) tensor_names: [[c_char; 256]; 32],
    pub(crate) tensor_names_count: u32,
}

/// `ze_graph_argument_property_strides_t`.
#[repr(C)]
pub(crate) struct ArgumentStridesProperty {
    pub(crate) head: Head,
    pub(crate) supported: u8,
}

/// `ze_graph_argument_metadata_t`.
#[repr(C)]
pub(crate) struct ArgumentMetadata {
    pub(crate) head: Head,
    pub(crate) kind: u32,
    pub(crate) friendly_name: [c_char; 256],
    pub(crate) data_type: u32,
    pub(crate) shape: [u64; 8],
    pub(crate) shape_size: u32,
    pub(crate) tensor_names: [[c_char; 256]; 32],
    pub(crate) tensor_names_count: u32,
    pub(crate) input_name: [c_char; 256],
}

/// `ze_graph_argument_value_tensor_t`.
#[repr(C)]
pub(crate) struct ArgumentTensor {
    pub(crate) head: Head,
    pub(crate) tensor: *const c_void,
}

/// `ze_device_graph_properties_t`.
#[repr(C)]
pub(crate) struct DeviceGraphProperties {
    pub(crate) head: Head,
    pub(crate) extension: u32,
    pub(crate) compiler_major: u16,
    pub(crate) compiler_minor: u16,
    pub(crate) formats: u32,
    pub(crate) opset: u32,
}

/// `ze_device_graph_properties_2_t`.
#[repr(C)]
pub(crate) struct DeviceGraphProperties2 {
    pub(crate) first: DeviceGraphProperties,
    pub(crate) elf: [u32; 3],
    pub(crate) runtime: [u32; 3],
}

/// `ze_graph_memory_query_t`.
#[repr(C)]
pub(crate) struct MemoryQuery {
    pub(crate) total: u64,
    pub(crate) allocated: u64,
}

/// `ze_driver_extension_npu_ext_t`, by which the newest drivers give tables.
#[repr(C)]
pub(crate) struct DriverExtension {
    pub(crate) head: Head,
    pub(crate) name: *const c_char,
    pub(crate) version: u32,
    pub(crate) address: *mut *mut c_void,
}
