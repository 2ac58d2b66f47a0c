//! The NPU of this machine, by the ids of PCI devices that Linux lists.

use std::path::Path;

use heg_artifacts::ElfVersion;
use heg_spec::NpuPlatform;

/// The NPU of a machine, as far as the choice of blobs depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineNpu {
    /// The platform.
    pub platform: NpuPlatform,
    /// Newest version of the ELF layout that its driver reads; `None` if nobody asked the driver, or it does not say.
    pub elf: Option<ElfVersion>,
}

impl MachineNpu {
    /// The first known NPU among the accelerators that Linux lists. Its driver is not asked.
    pub fn listed() -> Option<Self> {
        below(Path::new("/sys/class/accel"))
    }

    /// The NPU with Intel's number of a PCI device, e.g. `0x643e`, if it is known. The devices are those of Linux'
    /// `ivpu_drv.h`.
    pub fn of_device(device_id: u32, elf: Option<ElfVersion>) -> Option<Self> {
        let platform = match device_id {
            0x7d1d | 0xad1d => NpuPlatform::NPU3720,
            0x643e => NpuPlatform::NPU4000,
            0xb03e => NpuPlatform::NPU5010,
            _ => return None,
        };
        Some(Self { platform, elf })
    }
}

/// The first known NPU among the accelerators of a folder.
fn below(accelerators: &Path) -> Option<MachineNpu> {
    let mut devices: Vec<_> = std::fs::read_dir(accelerators)
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("device"))
        .collect();
    devices.sort();
    devices.iter().find_map(|device| {
        let id = |file: &str| {
            let text = std::fs::read_to_string(device.join(file)).ok()?;
            u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
        };
        let device_id = id("device").filter(|_| id("vendor") == Some(INTEL))?;
        MachineNpu::of_device(device_id, None)
    })
}

/// Intel's number among vendors.
const INTEL: u32 = 0x8086;

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
        accelerator(0, "0x1da3\n", "0x643e\n");
        accelerator(1, "0x8086\n", "0xffff\n");
        assert_eq!(below(root.path()), None);
        accelerator(2, "0x8086\n", "0x643e\n");
        let found = below(root.path()).unwrap();
        assert_eq!(found.platform, NpuPlatform::NPU4000);
    }
}
