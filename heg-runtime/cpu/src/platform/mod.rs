//! What operating systems do differently: which cores there are, and on which ones a thread runs.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;

/// A core as the system numbers it. One that runs two threads at a time has two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Core {
    pub(crate) number: usize,
    /// The first number of the same core.
    pub(crate) first: usize,
    /// Whether it is of the machine's fast kind.
    pub(crate) is_fast: bool,
}
