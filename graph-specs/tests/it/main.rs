//! Tests of the shipped files, of files with one mistake each, and of arbitrary text.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod hostile;
mod reject;
mod shipped;
