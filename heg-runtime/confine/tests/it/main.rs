//! Tests of the worker with hostile and with ordinary input: its results equal those of this process, and input that
//! exceeds a limit is refused and leaves nothing behind.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read fixtures and take times"
)]

mod forms;
mod prompts;
mod world;
