//! The boundary to Vulkan: a safe interface over `ash`, loaded at run time. All `unsafe` code of the crate that calls a
//! driver is in this folder.
//!
//! Handles are destroyed by who made them, and each holds what it was made of: a memory its device, a device its
//! instance, a recording all memories and pipelines that its commands use.

#![allow(unsafe_code, reason = "calls of the Vulkan interface")]

mod clock;
mod commands;
mod copies;
mod device;
mod instance;
mod memory;
mod pipeline;
mod pipeline_cache;

pub(crate) use commands::{Args, Dispatch, Recording, Timing, submit};
pub(crate) use copies::{Copies, Towards};
pub(crate) use device::Device;
pub(crate) use instance::{Candidate, Instance};
pub(crate) use memory::{Kind, Memory, copy};
pub(crate) use pipeline::Pipeline;
pub(crate) use pipeline_cache::PipelineCache;
