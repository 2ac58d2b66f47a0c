//! What goes wrong in a simulation, by script.

use std::collections::BTreeMap;

use crate::sched::{Lane, Micros};

/// A script of faults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults {
    /// Launches that do not succeed, by their number: 0 is the first of the simulation.
    pub launches: BTreeMap<u64, LaunchFault>,
    /// Devices that go away.
    pub interruptions: Vec<Interruption>,
}

/// What becomes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchFault {
    /// It fails when it would have been done.
    Fail,
    /// It never ends.
    Hang,
    /// It finds no memory, at once.
    OutOfMemory,
}

/// A device is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    /// Whose device.
    pub lane: Lane,
    /// When.
    pub lost: Micros,
    /// When it is there again, if ever.
    pub back: Option<Micros>,
}
