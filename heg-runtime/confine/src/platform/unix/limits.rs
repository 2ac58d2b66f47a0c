//! Limits that a process of the worker sets on itself before it reads untrusted input.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Sets the limits of the whole worker: it writes no file and dumps no core.
pub(crate) fn for_the_worker() -> io::Result<()> {
    set(Resource::Core, 0)?;
    set(Resource::Fsize, 0)?;
    set(Resource::Nofile, FILES_MAX)
}

/// Limits the growth of the heap to this many bytes from here on.
pub(crate) fn heap_from_here(bytes: u64) -> io::Result<()> {
    let now = statm(DATA_FIELD)?;
    set(Resource::Data, now.saturating_add(bytes))
}

/// Limits the stack of the main thread, which grows on use, up to this many bytes.
pub(crate) fn stack(bytes: u64) -> io::Result<()> {
    set(Resource::Stack, bytes)
}

/// Limits the process to this many seconds of processor time from here on.
pub(crate) fn processor_seconds(seconds: u64) -> io::Result<()> {
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec;
    set(Resource::Cpu, used.unsigned_abs().saturating_add(seconds))
}

/// Removes the limit on processor time.
pub(crate) fn no_limit_on_time() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Cpu);
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    Ok(setrlimit(Resource::Cpu, limit)?)
}

/// Sets the soft limit; the hard limit, which cannot be raised again, stays.
fn set(resource: Resource, bytes: u64) -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(resource);
    let current = Some(maximum.map_or(bytes, |maximum| maximum.min(bytes)));
    Ok(setrlimit(resource, Rlimit { current, maximum })?)
}

/// Returns the private memory of this process: the bytes that it wrote since it was forked.
///
/// # Errors
/// The system does not say.
pub(crate) fn own_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Private_Dirty:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let kibibytes =
        kibibytes.ok_or_else(|| io::Error::other("no `Private_Dirty` in smaps_rollup"))?;
    Ok(kibibytes << 10)
}

/// Returns a number of `/proc/self/statm`, in bytes.
fn statm(field: usize) -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(field);
    let pages = pages.and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::other("too few numbers in statm"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Index of the size of writable memory in `/proc/self/statm`.
const DATA_FIELD: usize = 5;

/// Maximum number of open files of a worker's process: two for each answer of a form.
const FILES_MAX: u64 = 1024;
