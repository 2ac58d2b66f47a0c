//! Safe boundary to OpenVINO, and to the driver of its NPU.
//!
//! The libraries are loaded at run time (`locate`, [`Core::load`]); nothing links against them, so
//! everything that needs no device builds and runs without OpenVINO. Follows DESIGN §4.5–4.8.
//!
//! **Memory.** Inference reads and writes memory of the caller. [`Memory`] is the promise that a
//! range stays mapped, [`Tensor`] a checked view into it that keeps it alive; models hold the memory
//! of their weights, compiled models hold their model's, requests hold every bound tensor. So memory
//! that OpenVINO may touch cannot be freed early. Two running requests that overlap in writable
//! memory, or a copy taken from memory that a running request writes, see unspecified bytes; keeping
//! them apart is the scheduler's duty.
//!
//! **Threads.** [`Core`] and [`CompiledModel`] are shared freely. An [`InferRequest`] belongs to one
//! thread at a time: it can be sent, not shared. Completion callbacks run on one of OpenVINO's
//! threads.
//!
//! **Trust.** Models and blobs are parsed by OpenVINO and its device compilers, which do not defend
//! themselves against hostile bytes. Verify the hashes of a bundle's sections before passing them
//! here.

#![deny(unsafe_code)]

#[allow(
    unsafe_code,
    reason = "callback that OpenVINO calls through a raw pointer"
)]
mod completion;
#[allow(unsafe_code, reason = "calls the OpenVINO C API")]
mod core;
#[allow(
    unsafe_code,
    reason = "calls the OpenVINO C API, and memory of devices"
)]
mod device_memory;
mod error;
mod level_zero;
mod locate;
#[allow(unsafe_code, reason = "raw memory shared with OpenVINO")]
mod memory;
#[allow(unsafe_code, reason = "calls the OpenVINO C API")]
mod model;
#[allow(unsafe_code, reason = "calls Level Zero's C interface")]
mod npu_driver;
#[allow(unsafe_code, reason = "calls the OpenVINO C API")]
mod output;
mod platform;
#[allow(unsafe_code, reason = "calls the OpenVINO C API")]
mod port;
pub mod precompile;
mod properties;
#[allow(unsafe_code, reason = "calls the OpenVINO C API")]
mod request;
#[allow(
    unsafe_code,
    reason = "handles and strings owned by the OpenVINO C API"
)]
mod sys;
#[allow(unsafe_code, reason = "calls the OpenVINO C API")]
mod tensor;

pub use crate::core::Core;
pub use crate::device_memory::{DeviceMemory, Loan};
pub use crate::error::OpenvinoError;
pub use crate::level_zero::NpuFiles;
pub use crate::locate::{OPENVINO_VERSION, find_libraries};
pub use crate::memory::{Access, HostBuffer, Memory};
pub use crate::model::{CompiledModel, Model};
pub use crate::npu_driver::NpuDriver;
pub use crate::output::Output;
pub use crate::port::PortInfo;
pub use crate::request::{InferRequest, Progress};
pub use crate::tensor::{RANK_MAX, Tensor, TensorType};
