//! Huge pages for what plugins allocate.
//!
//! A plugin keeps weights in a layout of its own, in memory from `malloc`. With small pages the kernel spends
//! as long on faults (one per 4 KiB) as the plugin on packing: of 3.2 s of processor time from start to first
//! token of a 1B model, 0.6 s. glibc asks for huge pages only when told so before the process starts, hence
//! the restart, which takes about a millisecond.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn restart_with() {
    use std::os::unix::process::CommandExt;

    // Whoever set tunables knows better.
    if std::env::var_os(TUNABLES).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    // `exec` returns only if it failed; small pages work too.
    let _ = std::process::Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(TUNABLES, "glibc.malloc.hugetlb=1")
        .exec();
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn restart_with() {}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TUNABLES: &str = "GLIBC_TUNABLES";
