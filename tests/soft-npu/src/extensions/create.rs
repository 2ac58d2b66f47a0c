//! Graphs are taken, brought to the device and given back.

use std::ffi::{c_char, c_void};
use std::ptr;

use crate::abi::npu::{FORMAT_NATIVE, GRAPH_PERSISTENT, GraphDesc2};
use crate::abi::{Code, Handle, INVALID_NULL_POINTER, UNSUPPORTED_FEATURE, answer, given, place};
use crate::graph::{GRAPHS, Graph};
use crate::log::{self, note};
use crate::pages::{PAGE_BYTES, file_of};

/// Takes what only a compiler could: a test that gets here has a bundle without the blob that it needs.
pub(super) extern "C" fn create(_: Handle, _: Handle, _: *const c_void, _: *mut Handle) -> Code {
    note!("REFUSED compile through pfnCreate");
    UNSUPPORTED_FEATURE
}

pub(super) unsafe extern "C" fn create_2(
    _: Handle,
    _: Handle,
    desc: *const GraphDesc2,
    out: *mut Handle,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let (desc, out) = unsafe { (given(desc)?, place(out)?) };
        if desc.format != FORMAT_NATIVE {
            note!("REFUSED compile of format {}", desc.format);
            return Err(UNSUPPORTED_FEATURE);
        }
        if desc.input.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        // SAFETY: a caller gives the length of its input, and keeps it as it is for the call.
        let bytes = unsafe { std::slice::from_raw_parts(desc.input, desc.size) };
        if log::is_kept() {
            let start = desc.input.addr();
            note!(
                "create size={} of={} flags={:#x} aligned={}",
                desc.size,
                file_of(start),
                desc.flags,
                (start | desc.size).is_multiple_of(PAGE_BYTES)
            );
        }
        let is_persistent = desc.flags & GRAPH_PERSISTENT != 0;
        *out = GRAPHS.keep(Graph::create(bytes, is_persistent)?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn create_3(
    context: Handle,
    device: Handle,
    desc: *const GraphDesc2,
    out: *mut Handle,
    build_log: *mut Handle,
) -> Code {
    // SAFETY: as the module above says of a caller's pointers; there is no log, as nothing is built.
    if let Some(build_log) = unsafe { build_log.as_mut() } {
        *build_log = ptr::null_mut();
    }
    // SAFETY: the caller's promises are those that `create_2` asks for.
    unsafe { create_2(context, device, desc, out) }
}

pub(super) extern "C" fn destroy(graph: Handle) -> Code {
    answer(|| {
        let graph = GRAPHS.release(graph)?;
        note!("graph-destroy {}", graph.facts.name);
        Ok(())
    })
}

pub(super) extern "C" fn initialize(graph: Handle) -> Code {
    answer(|| {
        let graph = GRAPHS.get(graph)?;
        note!("initialize graph={}", graph.facts.name);
        graph.initialize()
    })
}

/// An empty text.
pub(super) unsafe extern "C" fn build_log(_: Handle, bytes: *mut u32, out: *mut c_char) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let bytes = unsafe { place(bytes) }?;
        // SAFETY: likewise; there is room for as many characters as `bytes` says.
        if let Some(end) = unsafe { out.as_mut() }.filter(|_| *bytes > 0) {
            *end = 0;
        }
        *bytes = 1;
        Ok(())
    })
}

pub(super) extern "C" fn build_log_destroy(_: Handle) -> Code {
    0
}
