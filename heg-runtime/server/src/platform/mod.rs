//! The differences between operating systems: the way in for clients of this user alone, the end of a connection, who
//! can read a file, how many may be open, the processor time of a thread, and how a process is told to end.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(super) use unix::*;
#[cfg(windows)]
pub(super) use windows::*;
