//! Tests of bundles and stores from outside: written bundles can be read, broken ones are refused.
//!
//! `tiny` makes small bundles; the other modules cover one subject each. Bundles here have the structure of real ones
//! and random contents.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod corruption;
mod fixture;
mod parts;
mod program;
mod properties;
mod reject;
mod reject_gpu;
mod reject_graph;
mod reject_groups;
mod reject_manifest;
mod reject_pieces;
mod reject_states;
mod shared;
mod store;
mod tiny;
mod view;
mod write;
