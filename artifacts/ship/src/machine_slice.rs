//! The slice for the NPU of this machine, by the ids of PCI devices that Linux lists.

use std::path::Path;

use heg_spec::NpuPlatform;

/// The name of the slice with blobs for this machine's NPU, e.g. `npu-4000`; `None` without a known NPU.
pub fn machine_slice() -> Option<String> {
    below(Path::new("/sys/class/accel"))
}

/// The slice for the first known NPU among the accelerators of a folder.
fn below(accelerators: &Path) -> Option<String> {
    let mut devices: Vec<_> = std::fs::read_dir(accelerators)
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("device"))
        .collect();
    devices.sort();
    devices.iter().find_map(|device| {
        let id = |file: &str| {
            let text = std::fs::read_to_string(device.join(file)).ok()?;
            u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
        };
        let platform = match (id("vendor")?, id("device")?) {
            (INTEL, 0x7d1d | 0xad1d) => NpuPlatform::NPU3720,
            (INTEL, 0x643e) => NpuPlatform::NPU4000,
            (INTEL, 0xb03e) => NpuPlatform::NPU5010,
            _ => return None,
        };
        Some(format!("npu-{platform}"))
    })
}

/// Intel's number among vendors. The devices are those of Linux' `ivpu_drv.h`.
const INTEL: u16 = 0x8086;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_machine_is_offered_the_blobs_of_its_npu() {
        let root = tempfile::tempdir().unwrap();
        let accelerator = |number: u32, vendor: &str, device: &str| {
            let folder = root.path().join(format!("accel{number}/device"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), vendor).unwrap();
            fs::write(folder.join("device"), device).unwrap();
        };
        assert_eq!(below(root.path()), None);
        assert_eq!(below(&root.path().join("absent")), None);
        accelerator(0, "0x1da3\n", "0x1020\n");
        accelerator(1, "0x8086\n", "0xffff\n");
        assert_eq!(below(root.path()), None);
        accelerator(2, "0x8086\n", "0x643e\n");
        assert_eq!(below(root.path()).as_deref(), Some("npu-4000"));
    }
}
