//! Operating systems: the cores of this machine, and pinning threads to them.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;

/// A logical core. A physical core that runs two threads at a time has two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Core {
    pub(crate) number: usize,
    /// The lowest number of the same physical core.
    pub(crate) first: usize,
    /// Whether it is one of the machine's fast cores.
    pub(crate) is_fast: bool,
}
