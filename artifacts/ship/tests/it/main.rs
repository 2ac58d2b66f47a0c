//! Bundles on their way: what arrives is the file or nothing, whatever the other side does.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod bad;
mod bundles;
mod device;
mod docker_registry;
mod failures;
mod layouts;
mod lies;
mod looks;
mod lost;
mod lying;
mod mirrors;
mod nginx;
mod platforms;
mod real;
mod signed;
mod states;
mod web;
mod world;
