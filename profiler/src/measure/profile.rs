//! The side file with the measurements of one bundle on one machine.
//!
//! It belongs to a bundle, by the hash of its manifest, and to devices, by the names that they and their drivers
//! report: with another driver the same kernels take other times. The bundle itself stays as it was shipped. The text
//! comes from a cache folder that anyone may have written to, so its length is bounded before it is read and every
//! number is checked as it is read.

use std::collections::{BTreeMap, BTreeSet};

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{Binding, ShapeClass, Work};
use heg_spec::DeviceClass;
use serde::{Deserialize, Serialize};

use super::Case;
use crate::annotation::Contention;
use crate::model::{DevicePeaks, RawDevicePeaks};
use crate::partition::PieceTable;
use crate::predict::{Calibrated, LatencyTable};

/// Revision of the file's content. A reader accepts this revision and older ones.
pub const PROFILE_REVISION: u32 = 1;

/// Longest file that is read, in bytes. Chosen: twenty times the size for a model with six hundred static variants.
pub const PROFILE_BYTES_MAX: usize = 4 << 20;

/// All measurements of a bundle on the devices of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// See [`PROFILE_REVISION`].
    pub revision: u32,
    /// The bundle, by the hash of its manifest.
    pub bundle: SectionId,
    /// Name of the SoC file whose devices were measured.
    pub soc: String,
    /// The devices, in the order of the SoC file, with their measurements.
    pub devices: Vec<DeviceProfile>,
    /// Slowdown of devices beside each other; empty for a single device, and before it is measured.
    #[serde(default)]
    pub contention: Vec<Contention>,
    /// Latencies of pieces of products on two of the devices that share them; empty where no two do, and before they are
    /// measured.
    #[serde(default)]
    pub pieces: Vec<PieceTable>,
}

/// The properties of a device on which latencies depend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// Its role.
    pub class: DeviceClass,
    /// OpenVINO device, e.g. `GPU.0`.
    pub openvino: String,
    /// Full name of the device.
    pub name: String,
    /// Version of driver and plugin.
    pub driver: String,
    /// Properties that its kernels were compiled with.
    pub properties: BTreeMap<String, String>,
}

/// A device with its measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Identity of the device.
    pub identity: DeviceIdentity,
    /// Its variants, in the order in which they were measured.
    #[serde(default)]
    pub variants: Vec<VariantProfile>,
}

/// The measurements of a variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantProfile {
    /// Name of the kernel.
    pub kernel: String,
    /// Shape class of the variant.
    pub shape: ShapeClass,
    /// Weight binding of the variant.
    pub binding: Binding,
    /// The number of KV cache rows given to attention is always a multiple of this; 1 if it does not matter.
    pub context_step: u32,
    /// Latencies of the variant alone on the device.
    pub table: LatencyTable,
}

/// Reasons why a file is not a profile, or not the expected one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The profile is longer than any real one.
    #[error("the profile is `{found}` bytes long, expected up to `{limit}`")]
    TooLong {
        /// Length of the text.
        found: usize,
        /// The longest that is read.
        limit: usize,
    },

    /// The text is not a profile.
    #[error("profile, line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The parser's message: what was expected and found.
        message: String,
    },

    /// A newer program wrote this.
    #[error("the profile's revision `{found}` is unknown: this program reads `1` to `{supported}`")]
    Revision {
        /// The revision in the file.
        found: u32,
        /// The newest revision that is read.
        supported: u32,
    },

    /// Something is described twice, so that its value would depend on the order.
    #[error("the profile has {what} `{found}` more than once")]
    Twice {
        /// Kind of thing.
        what: &'static str,
        /// Name of the thing.
        found: String,
    },

    /// Another bundle was measured.
    #[error("the profile is of bundle `{found}`, expected `{expected}`")]
    OtherBundle {
        /// The bundle in the file.
        found: SectionId,
        /// The present bundle.
        expected: SectionId,
    },

    /// Another device, or another driver, was measured.
    #[error("the profile is of {found}, expected {expected}")]
    OtherDevice {
        /// Devices in the file.
        found: String,
        /// The present devices.
        expected: String,
    },
}

impl Profile {
    /// Returns an empty profile of a bundle on devices.
    pub fn new(bundle: SectionId, soc: &str, devices: Vec<DeviceIdentity>) -> Self {
        let device = |identity| DeviceProfile {
            identity,
            variants: Vec::new(),
        };
        Self {
            revision: PROFILE_REVISION,
            bundle,
            soc: soc.to_owned(),
            devices: devices.into_iter().map(device).collect(),
            contention: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Reads a profile.
    ///
    /// Errors: [`ProfileError::TooLong`], [`ProfileError::Syntax`] (also for a number that its type refuses),
    /// [`ProfileError::Revision`], [`ProfileError::Twice`].
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        if text.len() > PROFILE_BYTES_MAX {
            return Err(ProfileError::TooLong {
                found: text.len(),
                limit: PROFILE_BYTES_MAX,
            });
        }
        let found: Self = options()
            .from_str(text)
            .map_err(|error| ProfileError::Syntax {
                line: error.span.start.line,
                column: error.span.start.col,
                message: error.code.to_string(),
            })?;
        found.check()?;
        Ok(found)
    }

    /// Returns the profile's text, one variant per line.
    ///
    /// Errors: those of [`Profile::parse`], for a profile that it would refuse.
    pub fn to_text(&self) -> Result<String, ProfileError> {
        self.check()?;
        let layout = ron::ser::PrettyConfig::new()
            .depth_limit(5)
            .indentor(" ")
            .extensions(ron::extensions::Extensions::empty());
        let text =
            options()
                .to_string_pretty(self, layout)
                .map_err(|error| ProfileError::Syntax {
                    line: 1,
                    column: 1,
                    message: error.to_string(),
                })?;
        match text.len() > PROFILE_BYTES_MAX {
            true => Err(ProfileError::TooLong {
                found: text.len(),
                limit: PROFILE_BYTES_MAX,
            }),
            false => Ok(text),
        }
    }

    /// Refuses a profile of another bundle or of other devices: [`ProfileError::OtherBundle`],
    /// [`ProfileError::OtherDevice`].
    pub fn expect(
        &self,
        bundle: SectionId,
        devices: &[DeviceIdentity],
    ) -> Result<(), ProfileError> {
        if self.bundle != bundle {
            return Err(ProfileError::OtherBundle {
                found: self.bundle,
                expected: bundle,
            });
        }
        let found: Vec<&DeviceIdentity> = self.devices.iter().map(|one| &one.identity).collect();
        if found != devices.iter().collect::<Vec<_>>() {
            return Err(ProfileError::OtherDevice {
                found: describe(found.into_iter()),
                expected: describe(devices.iter()),
            });
        }
        Ok(())
    }

    /// The measurements of a case.
    pub fn variant(&self, case: &Case) -> Option<&VariantProfile> {
        let device = self.device(case.device)?;
        device.variants.iter().find(|variant| {
            (variant.kernel.as_str(), variant.shape, variant.binding)
                == (case.kernel.as_str(), case.shape, case.binding)
        })
    }

    /// The device of a role.
    pub fn device(&self, class: DeviceClass) -> Option<&DeviceProfile> {
        self.devices
            .iter()
            .find(|device| device.identity.class == class)
    }

    /// Prediction of a case's latencies.
    pub fn calibrated(&self, case: &Case, peaks: DevicePeaks) -> Option<Calibrated> {
        let variant = self.variant(case)?;
        let table = variant.table.clone();
        Some(Calibrated::fit(
            table,
            variant.context_step,
            &case.work,
            peaks,
        ))
    }

    /// Adds the measurements of a case, replacing earlier ones.
    pub(super) fn put(&mut self, case: &Case, table: LatencyTable) {
        let device = self
            .devices
            .iter_mut()
            .find(|device| device.identity.class == case.device);
        let Some(device) = device else { return };
        let fresh = VariantProfile {
            kernel: case.kernel.clone(),
            shape: case.shape,
            binding: case.binding,
            context_step: case.context_step,
            table,
        };
        device.variants.retain(|variant| {
            (&variant.kernel, variant.shape, variant.binding)
                != (&fresh.kernel, fresh.shape, fresh.binding)
        });
        device.variants.push(fresh);
    }

    fn check(&self) -> Result<(), ProfileError> {
        if !(1..=PROFILE_REVISION).contains(&self.revision) {
            return Err(ProfileError::Revision {
                found: self.revision,
                supported: PROFILE_REVISION,
            });
        }
        let classes = self.devices.iter();
        let classes = classes.map(|device| format!("{:?}", device.identity.class));
        check_unique("device", classes)?;
        for device in &self.devices {
            let variants = device.variants.iter();
            let names =
                variants.map(|one| format!("{} {:?} {:?}", one.kernel, one.shape, one.binding));
            check_unique("variant", names)?;
        }
        let cells = self.contention.iter();
        let cells = cells.map(|cell| format!("{:?} beside {:?}", cell.subject(), cell.neighbour()));
        check_unique("contention", cells)?;
        let pieces = self.pieces.iter().map(|piece| {
            let (side, company) = (piece.side, piece.company);
            format!("{} of the {side} device, {company:?}", piece.product)
        });
        check_unique("pieces", pieces)
    }
}

/// The highest bandwidth and throughput in any of the tables.
pub(super) fn peaks_of<'t>(
    tables: impl Iterator<Item = (&'t Work, &'t LatencyTable)>,
) -> Option<DevicePeaks> {
    let (mut bytes_per_sec, mut flops_per_sec) = (0.0_f64, 0.0_f64);
    for (work, table) in tables {
        for (call, latency_us) in table.entries() {
            bytes_per_sec = bytes_per_sec.max(call.bytes(work) / latency_us * 1e6);
            flops_per_sec = flops_per_sec.max(call.flops(work) / latency_us * 1e6);
        }
    }
    let raw = RawDevicePeaks {
        flops_per_sec,
        bytes_per_sec,
    };
    DevicePeaks::new(raw).ok()
}

fn options() -> ron::Options {
    ron::Options::default()
        .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME)
        .with_recursion_limit(64)
}

fn describe<'d>(devices: impl Iterator<Item = &'d DeviceIdentity>) -> String {
    let one = |device: &DeviceIdentity| {
        let DeviceIdentity {
            openvino,
            name,
            driver,
            ..
        } = device;
        format!("`{openvino}` ({name}, {driver})")
    };
    let all: Vec<String> = devices.map(one).collect();
    match all.is_empty() {
        true => "no device".to_owned(),
        false => all.join(" and "),
    }
}

fn check_unique(
    what: &'static str,
    names: impl Iterator<Item = String>,
) -> Result<(), ProfileError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if let Some(found) = seen.replace(name) {
            return Err(ProfileError::Twice { what, found });
        }
    }
    Ok(())
}
