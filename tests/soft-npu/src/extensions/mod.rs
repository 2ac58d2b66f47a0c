//! The NPU's extensions: tables of functions, in the order of the headers (`ze_graph_ext.h` and its likes). A table is
//! the newest one; the plugin calls no further than the version that it is told.
//!
//! A caller's pointers are those that the extensions' specification asks for: null, or aligned and of the structure
//! that the function names, alone for the call. Handles are looked up, so that they need no promise.

mod create;
mod describe;
mod execute;
mod others;

use std::ffi::c_void;

/// The address of a function.
type Entry = *const c_void;

/// Functions in a fixed order.
#[repr(transparent)]
struct Table<const N: usize>([Entry; N]);

// SAFETY: addresses of functions, never written.
unsafe impl<const N: usize> Sync for Table<N> {}

/// `ze_graph_dditable_ext_t`; what a driver needs its compiler for is refused.
static GRAPH: Table<31> = Table([
    create::create as Entry,
    create::destroy as Entry,
    describe::properties as Entry,
    others::refused_argument_properties as Entry,
    execute::set_argument as Entry,
    execute::append_initialize as Entry,
    execute::append_execute as Entry,
    others::refused_native_binary as Entry,
    describe::device_properties as Entry,
    describe::argument_metadata as Entry,
    others::refused_argument_properties_2 as Entry,
    describe::argument_properties as Entry,
    others::refused_query_create as Entry,
    others::refused_query_destroy as Entry,
    others::refused_query_layers as Entry,
    create::build_log as Entry,
    create::create_2 as Entry,
    others::refused_query_create_2 as Entry,
    describe::context_memory as Entry,
    describe::device_properties_2 as Entry,
    others::refused_native_binary_2 as Entry,
    describe::properties_2 as Entry,
    create::initialize as Entry,
    others::options as Entry,
    others::is_option as Entry,
    create::create_3 as Entry,
    describe::properties_3 as Entry,
    create::build_log as Entry,
    create::build_log_destroy as Entry,
    execute::set_argument_2 as Entry,
    others::evict as Entry,
]);

static PROFILING: Table<7> = Table([others::refused_profiling as Entry; 7]);
static QUEUE: Table<1> = Table([others::set_workload as Entry]);
static CONTEXT: Table<2> = Table([
    others::set_context as Entry,
    others::release_context as Entry,
]);
static DRIVER: Table<1> = Table([others::driver_extension as Entry]);

/// The graph extension.
pub(crate) fn graph() -> Entry {
    (&raw const GRAPH).cast()
}

/// The profiling extension.
pub(crate) fn profiling() -> Entry {
    (&raw const PROFILING).cast()
}

/// The extension of queues.
pub(crate) fn queue() -> Entry {
    (&raw const QUEUE).cast()
}

/// The extension of contexts.
pub(crate) fn context() -> Entry {
    (&raw const CONTEXT).cast()
}

/// The extension of drivers.
pub(crate) fn driver() -> Entry {
    (&raw const DRIVER).cast()
}
