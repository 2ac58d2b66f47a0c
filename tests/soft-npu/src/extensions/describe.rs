//! Properties of graphs, of their ports, and of the device.

use crate::abi::npu::{
    ARGUMENT_INPUT, ARGUMENT_OUTPUT, ArgumentMetadata, ArgumentProperties3,
    ArgumentStridesProperty, DeviceGraphProperties, DeviceGraphProperties2, FORMAT_NATIVE,
    GRAPH_NO_STANDARD_ALLOCATION, GRAPH_PRE_COMPILED, GraphProperties, GraphProperties2,
    GraphProperties3, MemoryQuery, STAGE_INITIALIZE, STYPE_ARGUMENT_STRIDES_PROPERTY,
};
use crate::abi::{Code, Handle, Head, answer, place, put};
use crate::graph::{Backing, GRAPHS, Graph};
use crate::memory::own_bytes;
use crate::settings::settings;

fn ports(graph: &Graph) -> u32 {
    u32::try_from(graph.facts.ports.len()).unwrap_or(u32::MAX)
}

pub(super) unsafe extern "C" fn properties(graph: Handle, out: *mut GraphProperties) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        unsafe { place(out) }?.num_args = ports(&*GRAPHS.get(graph)?);
        Ok(())
    })
}

/// Driver, `level_zero_driver/source/ext/graph.cpp`, `getProperties2`: every graph asks to be brought to the device.
pub(super) unsafe extern "C" fn properties_2(graph: Handle, out: *mut GraphProperties2) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        out.num_args = ports(&*GRAPHS.get(graph)?);
        out.init_stage = STAGE_INITIALIZE;
        Ok(())
    })
}

/// Driver, `graph.cpp`, `initialize`: a graph that reads its bytes in a copy says so.
pub(super) unsafe extern "C" fn properties_3(graph: Handle, out: *mut GraphProperties3) -> Code {
    answer(|| {
        let graph = GRAPHS.get(graph)?;
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        out.num_args = ports(&graph);
        out.init_stage = STAGE_INITIALIZE;
        out.flags = match graph.backing {
            Backing::Lent | Backing::Imported => GRAPH_PRE_COMPILED,
            Backing::Copied => GRAPH_PRE_COMPILED | GRAPH_NO_STANDARD_ALLOCATION,
        };
        Ok(())
    })
}

/// Driver, `level_zero_driver/source/ext/elf_parser.cpp`, `getArgumentProperties`.
pub(super) unsafe extern "C" fn argument_properties(
    graph: Handle,
    index: u32,
    out: *mut ArgumentProperties3,
) -> Code {
    answer(|| {
        let graph = GRAPHS.get(graph)?;
        let port = graph.port(index)?;
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        // SAFETY: likewise for the structures behind it, which are the caller's to be written.
        unsafe { refuse_strides(out.first.head.next.cast_mut()) };
        put(&mut out.first.name, &port.name);
        out.first.kind = kind(port.is_input);
        out.first.dims = [1; 5];
        for (to, from) in out.first.dims.iter_mut().zip(&port.dims) {
            *to = *from;
        }
        out.dims_count = u32::try_from(port.dims.len()).unwrap_or(0);
        out.first.network_precision = port.precision;
        out.first.device_precision = port.precision;
        out.quant_reverse_scale = if port.is_input { 1.0 } else { 0.0 };
        out.quant_zero_point = 0;
        put(&mut out.friendly_name, &port.friendly_name);
        for (to, name) in out.tensor_names.iter_mut().zip(&port.tensor_names) {
            put(to, name);
        }
        out.tensor_names_count = u32::try_from(port.tensor_names.len()).unwrap_or(0);
        Ok(())
    })
}

/// Says of each question about strides in a chain that there are none but a shape's own.
///
/// # Safety
///
/// `at` is null or of a chain that is the caller's to be written.
unsafe fn refuse_strides(mut at: *mut Head) {
    // SAFETY: the caller promises as much.
    while let Some(head) = unsafe { at.as_mut() } {
        if head.stype == STYPE_ARGUMENT_STRIDES_PROPERTY {
            // SAFETY: this is the structure of that type.
            unsafe { (*at.cast::<ArgumentStridesProperty>()).supported = 0 };
        }
        at = head.next.cast_mut();
    }
}

const fn kind(is_input: bool) -> u32 {
    match is_input {
        true => ARGUMENT_INPUT,
        false => ARGUMENT_OUTPUT,
    }
}

/// Driver, `elf_parser.cpp`, `getArgumentMetadata`.
pub(super) unsafe extern "C" fn argument_metadata(
    graph: Handle,
    index: u32,
    out: *mut ArgumentMetadata,
) -> Code {
    answer(|| {
        let graph = GRAPHS.get(graph)?;
        let port = graph.port(index)?;
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        out.kind = kind(port.is_input);
        put(&mut out.friendly_name, &port.friendly_name);
        out.data_type = port.node_type;
        for (to, from) in out.shape.iter_mut().zip(&port.node_shape) {
            *to = *from;
        }
        out.shape_size = u32::try_from(port.node_shape.len()).unwrap_or(0);
        for (to, name) in out.tensor_names.iter_mut().zip(&port.tensor_names) {
            put(to, name);
        }
        out.tensor_names_count = u32::try_from(port.tensor_names.len()).unwrap_or(0);
        put(&mut out.input_name, &port.input_name);
        Ok(())
    })
}

fn describe_device(out: &mut DeviceGraphProperties) {
    out.extension = settings().graph;
    // Driver, `graph.cpp`, `getDeviceGraphProperties`: without its compiler the fields stay zero.
    (out.compiler_major, out.compiler_minor) = settings().compiler;
    out.formats = FORMAT_NATIVE;
    out.opset = 13;
}

pub(super) unsafe extern "C" fn device_properties(
    _: Handle,
    out: *mut DeviceGraphProperties,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        describe_device(unsafe { place(out) }?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn device_properties_2(
    _: Handle,
    out: *mut DeviceGraphProperties2,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        describe_device(&mut out.first);
        out.elf = settings().machine.elf;
        out.runtime = settings().machine.inference;
        Ok(())
    })
}

pub(super) unsafe extern "C" fn context_memory(
    _: Handle,
    kind: u32,
    out: *mut MemoryQuery,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        out.total = 4 << 30;
        out.allocated = if kind == 1 { own_bytes() as u64 } else { 0 };
        Ok(())
    })
}
