//! Tests of schedulers in the simulator, under the watch of the checker.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests take times, and a variable says how many worlds"
)]

mod action_logs;
mod bound;
mod cached_costs;
mod client_bound;
mod clients;
mod contention;
mod draft_mutants;
mod drafts;
mod events;
mod explanations;
mod fault_mutants;
mod fault_worlds;
mod faults;
mod least;
mod mechanisms;
mod mutants;
mod properties;
mod scenario;
mod script;
mod shapes;
mod sharing;
mod worlds;
