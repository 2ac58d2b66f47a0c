//! Tests of the crate and its worker against the real OpenVINO. `unloaded.rs` tests the time before it is loaded.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod npu_worker;
mod openvino;
mod refusals;
mod running;
mod tiny_models;
