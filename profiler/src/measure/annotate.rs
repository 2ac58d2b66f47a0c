//! A profile as an annotation document: measured predictions, to be laid over a bundle's own annotations.

use heg_artifacts::manifest::{Manifest, Work};

use super::profile::{DeviceProfile, Profile, VariantProfile, peaks_of};
use crate::annotation::{
    Annotations, DeviceAnnotation, Prediction, SocAnnotation, VariantAnnotation,
};
use crate::model::{AnchorSource, DevicePeaks, RawDevicePeaks};
use crate::predict::Calibrated;

impl Profile {
    /// Converts the profile of a bundle with this manifest to annotations, all [`AnchorSource::Measured`]. Leaves out
    /// anything that the manifest does not have. A device's peaks are what its kernels reached; that of the bandwidth is
    /// the most that any device of the machine did, since all have one memory. Peaks of data sheets come before them
    /// ([`Annotations::overlay`]).
    pub fn annotations(&self, manifest: &Manifest) -> Annotations {
        let reached = self.devices.iter().filter_map(|one| one.peaks(manifest));
        let bytes_per_sec = reached
            .map(|peaks| peaks.bytes_per_sec())
            .fold(0.0, f64::max);
        let devices = self.devices.iter();
        Annotations::new(vec![SocAnnotation {
            name: self.soc.clone(),
            devices: devices
                .map(|one| one.annotation(manifest, bytes_per_sec))
                .collect(),
            contention: self.contention.clone(),
            sweep: None,
        }])
    }
}

impl DeviceProfile {
    /// The variants of kernels that the manifest has, with their work.
    fn measured<'p>(
        &'p self,
        manifest: &'p Manifest,
    ) -> impl Iterator<Item = (&'p VariantProfile, &'p Work)> {
        let variants = self.variants.iter();
        variants.filter_map(|variant| Some((variant, work_of(manifest, &variant.kernel)?)))
    }

    /// The peaks that the device's kernels reached.
    fn peaks(&self, manifest: &Manifest) -> Option<DevicePeaks> {
        let measured = self.measured(manifest);
        peaks_of(measured.map(|(variant, work)| (work, &variant.table)))
    }

    fn annotation(&self, manifest: &Manifest, bytes_per_sec: f64) -> DeviceAnnotation {
        let own = self.peaks(manifest);
        let peaks = own.and_then(|peaks| {
            let raw = RawDevicePeaks {
                flops_per_sec: peaks.flops_per_sec(),
                bytes_per_sec,
            };
            DevicePeaks::new(raw).ok()
        });
        let entry = |(variant, work): (&VariantProfile, &Work)| variant.annotation(work, own?);
        DeviceAnnotation {
            class: self.identity.class,
            openvino: self.identity.openvino.clone(),
            npu: None,
            peaks,
            power: None,
            spec: None,
            variants: self.measured(manifest).filter_map(entry).collect(),
        }
    }
}

impl VariantProfile {
    fn annotation(&self, work: &Work, peaks: DevicePeaks) -> Option<VariantAnnotation> {
        let calibrated = Calibrated::fit(self.table.clone(), self.context_step, work, peaks);
        Some(VariantAnnotation {
            kernel: self.kernel.clone(),
            shape: self.shape,
            binding: self.binding,
            source: AnchorSource::Measured,
            prediction: Prediction::Measured(calibrated),
        })
    }
}

fn work_of<'m>(manifest: &'m Manifest, kernel: &str) -> Option<&'m Work> {
    let mut kernels = manifest.kernels.iter();
    let found = kernels.find(|known| known.name == kernel)?;
    Some(&found.work)
}
