//! Large pages for what plugins allocate: decoding reads all weights for every token, and 4 KiB pages make it look up
//! more addresses than a core keeps at hand.
//!
//! glibc's allocator asks the kernel for large pages only if its environment says so before `main`. So this program
//! starts itself once more, as the same process. For commands that stay: on two cores a 1B model decodes 2 to 6% faster,
//! eight requests at once 5 to 9%, and takes 0.1 s longer to start, on a virtual machine up to 0.6 s.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::os::unix::process::CommandExt;

/// Starts anew with large pages, unless that was done or the environment tunes the allocator in its own way. Where that
/// is impossible, goes on without.
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
        // Comes back only with an error.
        let _ = again.args(arguments).exec();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TUNABLES: &str = "GLIBC_TUNABLES";
