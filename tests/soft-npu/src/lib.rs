//! Level Zero's loader and the driver of an Intel NPU in software, for machines without an NPU.
//!
//! OpenVINO's NPU plugin opens `libze_loader.so.1` and asks it for everything. This library answers: it lists one NPU,
//! takes blobs that were compiled ahead of time, keeps to the rules of Linux' driver about memory, lists and fences,
//! and runs a blob by the CPU program of its kernel, on the memory that it is given. It fails where it is told to
//! (`settings`), and writes down every call that says something about copies, order or priority (`log`).
//!
//! Each rule names its source: *driver* is linux-npu-driver 1.32.1 (paths below `umd`), *ivpu* is Linux'
//! `drivers/accel/ivpu`, *plugin* is OpenVINO's `src/plugins/intel_npu`. Nothing here says anything about a device.
//! `tests/soft-npu/README.md` has the settings, and what this library is not.
#![cfg(target_os = "linux")]

#[allow(unsafe_code, reason = "memory that a caller of the C interface names")]
mod abi;
mod blob;
#[allow(unsafe_code, reason = "reads and writes the arguments of a run")]
mod compute;
mod device;
mod error;
#[allow(
    unsafe_code,
    non_snake_case,
    reason = "functions of Level Zero, by name"
)]
mod exports;
#[allow(
    unsafe_code,
    reason = "functions of the NPU's extensions, by their place in a table"
)]
mod extensions;
mod fault;
mod graph;
mod handles;
mod log;
#[allow(
    unsafe_code,
    reason = "memory of the device is allocated and freed here"
)]
mod memory;
#[allow(unsafe_code, reason = "asks the kernel whether pages can be pinned")]
mod pages;
mod settings;

/// Sizes of a blob's inputs and outputs in bytes, in the order of its ports, as the driver finds them.
///
/// # Errors
///
/// The fault of bytes that are no blob.
pub fn port_bytes(blob: &[u8]) -> Result<Vec<usize>, String> {
    let facts = blob::BlobFacts::read(blob).map_err(|error| error.to_string())?;
    Ok(facts.ports.iter().map(blob::BlobPort::bytes).collect())
}
