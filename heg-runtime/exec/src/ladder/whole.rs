//! The check that a model whose tokens see their whole text can run on the devices at all.

use heg_artifacts::manifest::Manifest;
use heg_spec::Group;

use super::Ladder;
use crate::error::ExecError;

impl Ladder {
    /// Checks that a device is left for texts that are seen as a whole, which CPU programs on the CPU alone compute.
    ///
    /// # Errors
    ///
    /// [`ExecError::NoRung`] with the reason of each device.
    pub(crate) fn check_sight(&self, manifest: &Manifest) -> Result<(), ExecError> {
        let runs = self.devices.iter().any(|device| device.missing.is_none());
        if self.sight.is_causal() || runs {
            return Ok(());
        }
        let mut kernels = manifest.kernels.iter();
        let attention = kernels.find(|kernel| kernel.group == Group::Mha);
        let reasons: Vec<String> = self
            .devices
            .iter()
            .filter_map(|device| Some(format!("{}: {}", device.name, device.missing.as_ref()?)))
            .collect();
        Err(ExecError::NoRung {
            kernel: attention.map_or_else(String::new, |kernel| kernel.name.clone()),
            reasons: reasons.join("; "),
        })
    }
}
