//! The GPU role against the CPU programs, bit by bit, on the device that `HEG_VK_DRIVER` names or the first that is there;
//! Vulkan's validation layer watches where it is installed, and has to be silent.
//!
//! Without a Vulkan device the tests are skipped, and say so; where `HEG_REQUIRE_GPU` is set they fail.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod attention;
mod both;
mod caches;
mod copies;
mod device;
mod kept;
mod noise;
mod products;
mod rounding;
mod rows;
