//! `heg` as a process: its command line, its pages, and machines of all kinds.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod cli;
mod command;
mod inspect_html;
mod inspect_kernels;
mod inspect_partition;
mod inspect_program;
mod machine;
#[cfg(target_os = "linux")]
mod pressure;
mod tiny;
