//! Large pages for the plugins' allocations: decoding reads all weights for every token, and with 4 KiB pages the
//! addresses exceed what a core's TLB holds.
//!
//! glibc's allocator asks the kernel for large pages only if its environment says so before `main`. So this program
//! starts itself once more, as the same process. For commands that run long: on two cores a 1B model decodes 2 to 6%
//! faster, eight requests at once 5 to 9%, and takes 0.1 s longer to start, on a virtual machine up to 0.6 s.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::os::unix::process::CommandExt;

/// Restarts the program with large pages, unless that was done or the environment tunes the allocator in its own way.
/// If that is impossible, continues without.
pub(crate) fn ask_for() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if std::env::var_os(TUNABLES).is_none()
        && let Ok(program) = std::env::current_exe()
    {
        let mut arguments = std::env::args_os();
        let mut again = std::process::Command::new(program);
        again.env(TUNABLES, "glibc.malloc.hugetlb=1");
        if let Some(name) = arguments.next() {
            again.arg0(name);
        }
        // Returns only with an error.
        let _ = again.args(arguments).exec();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TUNABLES: &str = "GLIBC_TUNABLES";
