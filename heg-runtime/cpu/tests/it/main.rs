//! Kernels as the compiler lowers them, in company, in pairs and refused. `no_allocation` has a program of its own,
//! for it counts what the whole process allocates.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod company;
#[allow(unsafe_code, reason = "rows that kernels work on")]
#[path = "../layer/mod.rs"]
mod layer;
mod pair;
mod partner;
mod roles;
