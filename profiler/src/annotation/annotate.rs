//! Makes the annotations of a bundle: data sheets from SoC files, and the vendor's tables of its blobs.
//!
//! On a device, its measurements are laid over the result; nothing is measured here.

use std::collections::BTreeMap;

use heg_artifacts::manifest::Manifest;
use heg_spec::NpuPlatform;
use heg_spec::soc::{self, Device, Soc};

use super::document::{
    Annotations, DeviceAnnotation, NpuAnnotation, Prediction, SocAnnotation, VariantAnnotation,
};
use super::error::AnnotationError;
use super::power::{DevicePower, RawDevicePower};
use super::sweep::{SweepLimits, sweep};
use super::vendor_table::VendorTable;
use crate::error::RooflineError;
use crate::model::{
    AnchorSource, DevicePeaks, RawAnchor, RawAnchors, RawDevicePeaks, Roofline, RooflineAnchor,
    RooflineAnchors,
};

/// Identifies a blob of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlobKey {
    /// Index into `Manifest::kernels`.
    pub kernel: usize,
    /// Index into the kernel's variants.
    pub variant: usize,
    /// The NPU platform that it was compiled for.
    pub platform: NpuPlatform,
}

/// Latency tables of the vendor's compiler, by blob.
pub type VendorTables = BTreeMap<BlobKey, VendorTable>;

/// Makes the annotations of a bundle for these machines, with a chunk sweep for each.
///
/// Errors: [`AnnotationError::Model`] and [`AnnotationError::Power`], for numbers that no checked SoC file has.
pub fn annotate(
    manifest: &Manifest,
    socs: &[Soc],
    vendor: &VendorTables,
    limits: SweepLimits,
) -> Result<Annotations, AnnotationError> {
    let limits = SweepLimits {
        context_tokens: limits.context_tokens.min(manifest.model.context_tokens),
        ..limits
    };
    let mut annotated = Vec::with_capacity(socs.len());
    for soc in socs {
        let mut soc = of_data_sheet(soc)?;
        for device in &mut soc.devices {
            if let Some(npu) = device.npu {
                device.variants = vendor_entries(manifest, npu.platform, vendor);
            }
        }
        soc.sweep = sweep(manifest, &soc, limits);
        annotated.push(soc);
    }
    Ok(Annotations::new(annotated))
}

/// Makes the annotation that follows from a SoC file alone: no variant has an entry of its own.
///
/// Errors: as [`annotate`].
pub fn of_data_sheet(soc: &Soc) -> Result<SocAnnotation, AnnotationError> {
    let dram = soc.dram.as_ref().map(|dram| dram.bytes_per_sec);
    let devices = soc.devices.iter().map(|device| of_device(device, dram));
    Ok(SocAnnotation {
        name: soc.name.clone(),
        devices: devices.collect::<Result<_, _>>()?,
        contention: Vec::new(),
        sweep: None,
    })
}

fn of_device(device: &Device, dram: Option<f64>) -> Result<DeviceAnnotation, AnnotationError> {
    let peaks = device.peaks.as_ref().and_then(|peaks| {
        let bytes_per_sec = peaks.bytes_per_sec.or(dram)?;
        Some(DevicePeaks::new(RawDevicePeaks {
            flops_per_sec: peaks.flops_per_sec,
            bytes_per_sec,
        }))
    });
    let peaks = peaks.transpose()?;
    let spec = peaks.map(|peaks| spec_roofline(peaks, device.anchors.as_ref()));
    let power = device.power.as_ref().map(|power| {
        DevicePower::new(RawDevicePower {
            prefill_watts: power.prefill_watts,
            decode_watts: power.decode_watts,
        })
    });
    Ok(DeviceAnnotation {
        class: device.class,
        openvino: device.openvino.clone(),
        npu: device.npu.as_ref().map(|npu| NpuAnnotation {
            platform: npu.platform,
            frequency_mhz: Some(npu.frequency_mhz),
        }),
        peaks,
        power: power.transpose()?,
        spec: spec.transpose()?,
        variants: Vec::new(),
    })
}

/// The roofline through a SoC file's anchors. Without anchors it is the ideal one, P(I) = min(P_peak, B_peak · I)
/// (Agent.xpu, equation 1), whose anchors are a copy at full bandwidth and a kernel at twice the knee.
fn spec_roofline(
    peaks: DevicePeaks,
    anchors: Option<&soc::Anchors>,
) -> Result<Roofline, RooflineError> {
    let knee = peaks.flops_per_sec() / peaks.bytes_per_sec();
    let ideal = [(0.0, 1.0), (2.0 * knee, 0.5)];
    let [memory_bound, compute_bound] = anchors.map_or(ideal, |anchors| {
        [anchors.memory_bound, anchors.compute_bound]
            .map(|anchor| (anchor.intensity_flops_per_byte, anchor.utilisation))
    });
    let anchor = |(intensity_flops_per_byte, utilisation)| {
        RooflineAnchor::new(RawAnchor {
            intensity_flops_per_byte,
            utilisation,
        })
    };
    let pair = RooflineAnchors::new(RawAnchors {
        memory_bound: anchor(memory_bound)?,
        compute_bound: anchor(compute_bound)?,
    })?;
    Roofline::fit(
        peaks,
        pair,
        anchors.map_or(0.0, |anchors| anchors.launch_us),
    )
}

fn vendor_entries(
    manifest: &Manifest,
    platform: NpuPlatform,
    vendor: &VendorTables,
) -> Vec<VariantAnnotation> {
    vendor
        .iter()
        .filter(|(key, _)| key.platform == platform)
        .filter_map(|(key, table)| {
            let kernel = manifest.kernels.get(key.kernel)?;
            let variant = kernel.variants.get(key.variant)?;
            Some(VariantAnnotation {
                kernel: kernel.name.clone(),
                shape: variant.shape,
                binding: variant.binding,
                source: AnchorSource::Vendor,
                prediction: Prediction::Vendor(table.clone()),
            })
        })
        .collect()
}

#[cfg(test)]
#[path = "annotate_tests.rs"]
mod tests;
