//! Linux: cores as described in `/sys`.

use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Core;

/// Cores that this process may use; empty if the system does not tell.
pub(crate) fn cores() -> Vec<Core> {
    let Ok(allowed) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let numbers = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
    described(Path::new("/sys/devices"), numbers.collect())
}

/// Pins the calling thread to `cores`. Returns false, and does nothing, if that fails.
pub(crate) fn keep_on(cores: &[usize]) -> bool {
    let mut set = CpuSet::new();
    for core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.set(*core);
    }
    sched_setaffinity(None, &set).is_ok()
}

/// Describes the cores with these numbers from files below `devices`. A core without files counts as a separate, fast
/// one.
fn described(devices: &Path, numbers: Vec<usize>) -> Vec<Core> {
    let cpu = |number: &usize| devices.join(format!("system/cpu/cpu{number}"));
    // Intel machines with two kinds of cores.
    let fast = fs::read_to_string(devices.join("cpu_core/cpus"))
        .ok()
        .and_then(|text| listed(&text));
    // Arm, and newer kernels on Intel: speed relative to the fastest core, in 1/1024.
    let capacity = |number: &usize| -> Option<u32> {
        let text = fs::read_to_string(cpu(number).join("cpu_capacity")).ok()?;
        text.trim().parse().ok()
    };
    let fastest = numbers.iter().filter_map(capacity).max();
    let core = |number: &usize| {
        let siblings = fs::read_to_string(cpu(number).join("topology/thread_siblings_list"))
            .ok()
            .and_then(|text| listed(&text));
        Core {
            number: *number,
            first: siblings
                .and_then(|all| all.first().copied())
                .unwrap_or(*number),
            is_fast: match (&fast, capacity(number), fastest) {
                (Some(fast), ..) => fast.contains(number),
                (None, Some(own), Some(fastest)) => own * 2 > fastest,
                _ => true,
            },
        }
    };
    numbers.iter().map(core).collect()
}

/// Parses a list of the kernel, such as `0-3,8`.
fn listed(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        numbers.extend((first..=last).take(CpuSet::MAX_CPU));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(listed("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(listed("5"), Some(vec![5]));
        assert_eq!(listed("5-3"), Some(Vec::new()));
        assert_eq!(listed(""), None);
        assert_eq!(listed("0-x"), None);
    }

    /// A folder like `/sys/devices` with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn cores_of(files: &[(&str, &str)], numbers: &[usize]) -> Vec<(usize, usize, bool)> {
        let folder = machine(files);
        let cores = described(folder.path(), numbers.to_vec());
        let parts = cores
            .iter()
            .map(|core| (core.number, core.first, core.is_fast));
        parts.collect()
    }

    #[test]
    fn kinds_of_cores_and_threads_of_one_core_are_told_apart() {
        let hybrid = [
            ("cpu_core/cpus", "0-1\n"),
            ("system/cpu/cpu0/topology/thread_siblings_list", "0-1\n"),
            ("system/cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
            ("system/cpu/cpu2/topology/thread_siblings_list", "2\n"),
        ];
        let found = cores_of(&hybrid, &[0, 1, 2]);
        assert_eq!(found, [(0, 0, true), (1, 0, true), (2, 2, false)]);
        let arm = [
            ("system/cpu/cpu0/cpu_capacity", "300\n"),
            ("system/cpu/cpu1/cpu_capacity", "900\n"),
            ("system/cpu/cpu2/cpu_capacity", "1024\n"),
        ];
        let found = cores_of(&arm, &[0, 1, 2]);
        assert_eq!(found, [(0, 0, false), (1, 1, true), (2, 2, true)]);
    }

    #[test]
    fn without_files_all_cores_are_alike() {
        assert_eq!(cores_of(&[], &[3, 5]), [(3, 3, true), (5, 5, true)]);
    }
}
