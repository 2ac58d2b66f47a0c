//! Tests of bundles and stores from outside: what is written can be read, and what is broken is refused.
//!
//! `tiny` makes small bundles; the other modules are one subject each. Bundles here have the structure of
//! real ones and contents that are noise.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod corruption;
mod fixture;
mod program;
mod properties;
mod reject;
mod reject_groups;
mod reject_manifest;
mod store;
mod tiny;
mod write;
