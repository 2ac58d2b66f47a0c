//! Faults on the real engine: the fault's target fails with a clear status; everybody else gets the same tokens as
//! without faults, memory comes back, and nothing hangs.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod calibration;
mod deadlines;
mod drafts;
mod explained;
mod flash;
mod health;
mod kernels;
mod lanes;
mod many;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod npu;
mod random_load;
mod scene;
mod shared_machine;
mod soak;
mod switching;
mod two_lanes;
mod verification;
mod vulkan;
mod world;
