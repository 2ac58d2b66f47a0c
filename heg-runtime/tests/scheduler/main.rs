//! Schedulers in the simulator, under the eyes of the checker.

mod faults;
mod mutants;
mod properties;
mod scenario;
mod shapes;
