//! Tests through the public interface: what is refused with which words, and the page that explains it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which clippy.toml excuses in test functions only"
)]

mod reject;
mod worked_example;
