//! `heg` as a process: its command line, its pages, and machines of all kinds.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod bake;
#[cfg(all(target_os = "linux", target_arch = "x86_64", feature = "ship"))]
mod bare;
#[cfg(all(target_os = "linux", target_arch = "x86_64", feature = "ship"))]
mod bare_root;
mod cli;
mod command;
#[cfg(all(unix, feature = "ship"))]
#[path = "../../../../artifacts/ship/tests/it/docker_registry.rs"]
mod docker_registry;
mod doctor_gpu;
#[cfg(all(unix, feature = "ship"))]
mod fit;
mod inspect_html;
mod inspect_kernels;
mod inspect_partition;
mod inspect_program;
#[cfg(all(unix, feature = "ship"))]
mod killed;
mod machine;
#[cfg(all(unix, feature = "ship"))]
mod moved;
#[cfg(all(target_os = "linux", feature = "ship"))]
#[path = "../../../../artifacts/ship/tests/it/nginx.rs"]
mod nginx;
#[cfg(target_os = "linux")]
mod pressure;
#[cfg(all(unix, feature = "ship"))]
mod registry;
#[cfg(all(target_os = "linux", feature = "ship"))]
mod room;
mod several;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod soft_npu;
mod state;
mod texts;
mod thoughts;
mod tiny;
#[cfg(all(unix, feature = "ship"))]
mod update;
#[cfg(all(target_os = "linux", feature = "ship"))]
mod web;
#[cfg(all(unix, feature = "ship"))]
mod wine;
