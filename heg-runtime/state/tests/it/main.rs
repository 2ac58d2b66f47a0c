//! Kept state on disks that fail, and on real ones.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod killed;
mod mapped;
mod pages;
mod strangers;
mod world;
mod worlds;
