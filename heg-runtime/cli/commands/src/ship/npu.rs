//! The NPU of this machine, for the choice among a bundle's slices.

use heg_artifacts::ElfVersion;
use heg_openvino::NpuDriver;
use heg_ship::MachineNpu;

/// This machine's NPU. Its driver says which blobs it reads, if there is one; its platform is known by its PCI id too.
///
/// A static program loads neither OpenVINO nor a driver: no NPU works for it, and it gets bundles without blobs.
pub(super) fn machine_npu() -> Option<MachineNpu> {
    if cfg!(target_feature = "crt-static") && cfg!(target_os = "linux") {
        return None;
    }
    let told = NpuDriver::ask().and_then(|driver| {
        MachineNpu::of_device(driver.device_id, driver.elf.map(ElfVersion::new))
    });
    told.or_else(MachineNpu::listed)
}
