//! The differences between operating systems: limits on memory, and the place of the user's cache.

use std::path::PathBuf;

/// Returns the folder for this user's reproducible files; `None` if the environment names none.
pub(crate) fn user_cache_folder() -> Option<PathBuf> {
    if cfg!(windows) {
        return variable("LOCALAPPDATA");
    }
    variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))
}

/// Returns the path in an environment variable; an empty one counts as not set.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Returns the number of bytes that this process may lock in memory; `None` if there is no limit.
#[cfg(unix)]
pub(crate) fn lockable_bytes() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// `None`, since only Unix has this limit.
#[cfg(not(unix))]
pub(crate) fn lockable_bytes() -> Option<u64> {
    None
}

/// Returns the number of bytes of memory that this process may have, by the machine and by its control groups; `None`
/// if the system does not say.
pub(crate) fn memory_bytes() -> Option<u64> {
    least_of("MemTotal:")
}

/// Returns the same of the memory that nothing uses, or that the system can take back at once.
pub(crate) fn available_bytes() -> Option<u64> {
    least_of("MemAvailable:")
}

/// The least of a line of `/proc/meminfo` and the limits of this process's control groups.
#[cfg(target_os = "linux")]
fn least_of(label: &str) -> Option<u64> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let machine = text("/proc/meminfo").lines().find_map(|line| {
        let kibibytes = line.strip_prefix(label)?.trim().strip_suffix(" kB")?;
        kibibytes.parse::<u64>().ok()?.checked_mul(1024)
    });
    // A group without a limit says `max`, or has no such file.
    let limits = limit_files(&text("/proc/self/cgroup"))
        .into_iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    machine.into_iter().chain(limits).min()
}

/// `None`: the system does not say.
#[cfg(not(target_os = "linux"))]
fn least_of(_label: &str) -> Option<u64> {
    None
}

/// Returns the files that may hold the memory limits of a process in these control groups. `groups` has a line for
/// each, `number:controllers:path`. A limit holds for all groups below.
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
        let total = memory_bytes().unwrap();
        let available = available_bytes().unwrap();
        assert!(
            (1 << 20..=total).contains(&available),
            "{available} of {total}"
        );
    }
}
