//! `libheg` as programs in C see it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod c_program;
mod exports;
mod header;
mod wheel;
