//! What differs between operating systems: advice and limits on memory, and where the user's cache is.

use std::ops::Range;
use std::path::PathBuf;

use memmap2::MmapRaw;

/// The folder below which this user's programs keep what they can make again; none where the environment names none.
pub(crate) fn user_cache_folder() -> Option<PathBuf> {
    if cfg!(windows) {
        return variable("LOCALAPPDATA");
    }
    variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))
}

/// The path in an environment variable; an empty one counts as not set.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Bytes of a page of memory.
#[cfg(unix)]
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Bytes that this process may lock in memory; none where nothing bounds it.
#[cfg(unix)]
pub(crate) fn lockable_bytes() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// None: only Unix has this limit.
#[cfg(not(unix))]
pub(crate) fn lockable_bytes() -> Option<u64> {
    None
}

/// Bytes of memory that this process may have, by the machine and by its control groups; none where nobody tells.
#[cfg(target_os = "linux")]
pub(crate) fn memory_bytes() -> Option<u64> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let total = text("/proc/meminfo").lines().find_map(|line| {
        let kibibytes = line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?;
        kibibytes.parse::<u64>().ok()?.checked_mul(1024)
    });
    // A group without a limit says `max`, or has no such file.
    let limits = limit_files(&text("/proc/self/cgroup"))
        .into_iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    total.into_iter().chain(limits).min()
}

/// None: nobody tells.
#[cfg(not(target_os = "linux"))]
pub(crate) fn memory_bytes() -> Option<u64> {
    None
}

/// Where the memory limits of a process may stand that is in these control groups, a line each:
/// `number:controllers:path`. A limit holds for all groups below.
#[cfg(target_os = "linux")]
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let files = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        let folder = std::path::Path::new(root).join(group);
        let above = folder.ancestors().take_while(|path| path.starts_with(root));
        Some(above.map(|path| path.join(file)).collect::<Vec<_>>())
    };
    groups.lines().filter_map(files).flatten().collect()
}

/// Has the system commit a mapping page by page, also where it has large pages for everybody.
#[cfg(target_os = "linux")]
pub(crate) fn refuse_large_pages(map: &MmapRaw) {
    // Memory is all that is lost where the system has no large pages, and says so.
    let _ = map.advise(memmap2::Advice::NoHugePage);
}

/// Does nothing: only Linux gives large pages unasked.
#[cfg(not(target_os = "linux"))]
pub(crate) fn refuse_large_pages(_map: &MmapRaw) {}

/// Asks for large pages, as a system does unasked that has them for everybody.
#[cfg(all(test, target_os = "linux"))]
pub(crate) fn ask_for_large_pages(map: &MmapRaw) {
    let _ = map.advise(memmap2::Advice::HugePage);
}

/// Gives the whole pages within `range` of an anonymous mapping back to the system. What they held is lost: on Linux
/// they are zeros, as at first.
#[cfg(unix)]
pub(crate) fn discard(map: &MmapRaw, range: Range<usize>) {
    let page = page_bytes();
    let first = range.start.next_multiple_of(page);
    let end = range.end.min(map.len()) / page * page;
    if first < end {
        // SAFETY: MADV_DONTNEED changes what memory holds, and nothing else: the range lies within the mapping and is
        // made of whole pages (just computed), so it stays mapped and writable, and no byte outside of it changes. An
        // `MmapRaw` is raw memory only: whoever makes references into it answers for them. Memory is all that is lost
        // where the system refuses.
        let _ = unsafe {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            map.unchecked_advise_range(advice, first, end - first)
        };
    }
}

/// Keeps the pages: Windows frees those of a mapping only with all of it.
#[cfg(not(unix))]
pub(crate) fn discard(_map: &MmapRaw, _range: Range<usize>) {}

/// A file that can be opened and never written, for tests of full disks.
#[cfg(feature = "faults")]
pub(crate) fn full_file() -> std::io::Result<std::fs::File> {
    if cfg!(windows) {
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    std::fs::File::options().write(true).open("/dev/full")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_groups_above_count() {
        let found = limit_files("4:memory:/a/b\n2:cpu:/c\n0::/d\n");
        let expected = [
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/d/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
