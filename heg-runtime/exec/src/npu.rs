//! The report on a machine's NPU: the device and its driver, its access to memory, and the blobs that fit.

use heg_artifacts::manifest::{Manifest, Variant};
use heg_spec::DeviceClass;
use serde::Serialize;

use crate::ladder::DeviceFacts;
use crate::loader::Loader;

/// An NPU in the words of OpenVINO and of the machine's files.
#[derive(Debug, Serialize)]
pub struct NpuReport {
    /// The vendor's name of the device; empty if it is missing.
    pub name: String,
    /// Why it cannot be used; `None` if it can.
    pub missing: Option<String>,
    /// The platform.
    pub platform: Option<u32>,
    /// Number of tiles.
    pub tiles: Option<u32>,
    /// The stepping.
    pub stepping: Option<String>,
    /// Version of the driver, as it counts them.
    pub driver: Option<String>,
    /// Version of the compiler in the driver; `None` for a driver without one.
    pub compiler: Option<String>,
    /// Loader, driver, kernel's driver and device file, by path.
    pub files: String,
    /// The firmware in the kernel's words, if this user may read them.
    pub firmware: Option<String>,
    /// The device's access to the weights.
    pub weights: String,
    /// Bytes of rows and caches that the device was given once, so far.
    pub known_bytes: u64,
    /// Bytes of rows and caches that it did not take, so far: its plugin copies them at each inference.
    pub refused_bytes: u64,
    /// Every blob of the bundle.
    pub blobs: Vec<BlobFit>,
}

/// A blob, and whether it fits the device.
#[derive(Debug, Serialize)]
pub struct BlobFit {
    /// Name of the kernel.
    pub kernel: String,
    /// Calls that it admits.
    pub shape: String,
    /// The platform that it was compiled for.
    pub platform: u32,
    /// Why it does not fit; `None` if it does.
    pub misfit: Option<String>,
}

/// A back end's knowledge of an NPU beside its facts.
pub(crate) struct NpuSetup {
    pub(crate) files: String,
    pub(crate) firmware: Option<String>,
    pub(crate) weights: String,
}

impl Loader {
    /// The report on the machine's NPU; `None` if the SoC lists none.
    pub fn npu_report(&self) -> Option<NpuReport> {
        let is_npu = |device: &&DeviceFacts| {
            DeviceClass::of_openvino(&device.name) == Some(DeviceClass::Npu)
        };
        let device = self.devices().iter().find(is_npu)?;
        let mut backends = self.backends().iter();
        let setup = backends.find_map(|backend| backend.npu_setup())?;
        let facts = device.npu.clone().unwrap_or_default();
        let (known_bytes, refused_bytes) = self.home().bytes();
        Some(NpuReport {
            name: device.full_name.clone(),
            missing: device.missing.clone(),
            platform: facts.platform.map(|platform| platform.number()),
            tiles: facts.tiles,
            stepping: facts.stepping,
            driver: device.driver.clone(),
            compiler: facts.compiler,
            files: setup.files,
            firmware: setup.firmware,
            weights: setup.weights,
            known_bytes,
            refused_bytes,
            blobs: blobs(self.bundle().manifest(), device),
        })
    }
}

fn blobs(manifest: &Manifest, device: &DeviceFacts) -> Vec<BlobFit> {
    let mut fits = Vec::new();
    for kernel in &manifest.kernels {
        let of_variant = |variant: &Variant| {
            let fit = variant.blobs.iter().map(|blob| BlobFit {
                kernel: kernel.name.clone(),
                shape: variant.shape.to_string(),
                platform: blob.platform.number(),
                misfit: device.accepts(blob).err().map(|misfit| misfit.to_string()),
            });
            fit.collect::<Vec<_>>()
        };
        fits.extend(kernel.variants.iter().flat_map(of_variant));
    }
    fits
}
