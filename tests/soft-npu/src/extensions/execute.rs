//! Arguments of graphs, and their runs in command lists.

use std::ffi::c_void;

use crate::abi::npu::{ArgumentTensor, STYPE_ARGUMENT_TENSOR};
use crate::abi::{Code, Handle, Head, INVALID_ARGUMENT, Outcome, answer, as_structure, given};
use crate::device::{COMMAND_LISTS, Command};
use crate::exports::list::waits;
use crate::graph::GRAPHS;
use crate::log::note;
use crate::memory::region_of;

fn set(graph: Handle, index: u32, value: *const c_void) -> Outcome {
    let graph = GRAPHS.get(graph)?;
    let address = value.expose_provenance();
    let port = graph.port(index)?;
    note!(
        "argument graph={} index={index} port={} bytes={} address={address:#x} memory={}",
        graph.facts.name,
        port.name,
        port.bytes(),
        region_of(address).map_or("unknown", |region| region.kind_name())
    );
    graph.set(index, address)
}

pub(super) extern "C" fn set_argument(graph: Handle, index: u32, value: *const c_void) -> Code {
    answer(|| set(graph, index, value))
}

/// Driver, `level_zero_driver/source/ext/graph.cpp`, `gatherArgumentValues`: strides are refused where a port has none.
pub(super) unsafe extern "C" fn set_argument_2(
    graph: Handle,
    index: u32,
    value: *const c_void,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers: a value begins with a head.
        let head = unsafe { given(value.cast::<Head>()) }?;
        if head.stype != STYPE_ARGUMENT_TENSOR {
            note!("REFUSED argument index={index} stype={:#x}", head.stype);
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: this is the structure of that type.
        let tensor: &ArgumentTensor = unsafe { as_structure(head) };
        set(graph, index, tensor.tensor)
    })
}

pub(super) extern "C" fn append_initialize(
    list: Handle,
    graph: Handle,
    _: Handle,
    _: u32,
    _: *const Handle,
) -> Code {
    answer(|| {
        GRAPHS.get(graph)?.initialize()?;
        COMMAND_LISTS.get(list)?.append(Command::Nothing)
    })
}

pub(super) unsafe extern "C" fn append_execute(
    list: Handle,
    graph: Handle,
    _: Handle,
    _: Handle,
    count: u32,
    events: *const Handle,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let waits = unsafe { waits(count, events) }?;
        let graph = GRAPHS.get(graph)?;
        note!("append list={list:p} graph={}", graph.facts.name);
        COMMAND_LISTS.get(list)?.append_execute(&graph, waits)
    })
}
