//! A profile as an annotation document: measured predictions, to be laid over a bundle's own annotations.

use heg_artifacts::manifest::{Manifest, Work};

use super::profile::{DeviceProfile, Profile, VariantProfile, peaks_of};
use crate::annotation::{
    Annotations, DeviceAnnotation, Prediction, SocAnnotation, VariantAnnotation,
};
use crate::model::{AnchorSource, DevicePeaks};
use crate::predict::Calibrated;

impl Profile {
    /// Converts the profile of a bundle with this manifest to annotations, all [`AnchorSource::Measured`]. Leaves out
    /// anything that the manifest does not have. Peaks come from data sheets; without one, utilisation is relative to
    /// the most that any kernel reached on the device.
    pub fn annotations(&self, manifest: &Manifest) -> Annotations {
        let devices = self.devices.iter();
        Annotations::new(vec![SocAnnotation {
            name: self.soc.clone(),
            devices: devices.map(|one| one.annotation(manifest)).collect(),
            contention: self.contention.clone(),
            sweep: None,
        }])
    }
}

impl DeviceProfile {
    fn annotation(&self, manifest: &Manifest) -> DeviceAnnotation {
        let measured = || {
            let variants = self.variants.iter();
            variants.filter_map(|variant| Some((variant, work_of(manifest, &variant.kernel)?)))
        };
        let peaks = peaks_of(measured().map(|(variant, work)| (work, &variant.table)));
        let entry = |(variant, work): (&VariantProfile, &Work)| variant.annotation(work, peaks?);
        DeviceAnnotation {
            class: self.identity.class,
            openvino: self.identity.openvino.clone(),
            npu: None,
            peaks: None,
            power: None,
            spec: None,
            variants: measured().filter_map(entry).collect(),
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
