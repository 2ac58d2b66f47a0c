//! Schedulers in the simulator, under the eyes of the checker.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod action_logs;
mod bound;
mod cached_costs;
mod events;
mod fault_mutants;
mod fault_worlds;
mod faults;
mod mechanisms;
mod mutants;
mod properties;
mod scenario;
mod script;
mod shapes;
mod worlds;
