//! Tests through the public interface: refusals with their messages, and the page that explains the model.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which clippy.toml excuses in test functions only"
)]

mod reject;
mod worked_example;
