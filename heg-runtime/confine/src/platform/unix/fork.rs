//! The one call that copies this process.

#![allow(
    unsafe_code,
    reason = "a process is copied by the C library only; the proof stands at the call"
)]

use std::fs;
use std::io;

use rustix::process::Pid;

/// A side of a fork.
pub(crate) enum Side {
    /// This process, with the process id of its copy.
    Parent(Pid),
    /// The copy.
    Child,
}

/// Copies this process.
///
/// # Errors
/// The process has several threads, or the system has no room for another process.
pub(crate) fn fork() -> io::Result<Side> {
    if threads()? != 1 {
        return Err(io::Error::other("expected a process of one thread"));
    }
    // SAFETY: in a copy only the calling thread goes on, so locks that other threads hold would stay held for ever, and
    // their half-done changes would stay half done. This process has one thread (counted just now, and only that thread
    // could start another), so the copy is this process again, in its present state.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => {
            let pid = Pid::from_raw(pid);
            pid.map(Side::Parent)
                .ok_or_else(|| io::Error::other("the copy has no number"))
        }
    }
}

/// Returns the number of threads of this process.
fn threads() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test's own thread is the second one.
    #[test]
    fn a_process_of_several_threads_is_not_copied() {
        let error = fork().err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("expected a process of one thread"));
    }
}
