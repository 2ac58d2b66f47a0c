//! Schedulers in the simulator, under the eyes of the checker.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod faults;
mod mutants;
mod properties;
mod scenario;
mod shapes;
