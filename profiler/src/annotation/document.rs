//! The annotation document: the known speeds of a bundle's kernels, per machine, device and variant.
//!
//! It is RON in a form that does not depend on the writer: fields in their order, lists in the order of the SoC file
//! and of the manifest, no spaces. Documents come from files, so their length is bounded before they are read, numbers
//! are checked as they are read, and duplicates are refused.

use std::collections::BTreeSet;

use heg_artifacts::manifest::{Binding, ShapeClass};
use heg_spec::{DeviceClass, NpuPlatform};
use serde::{Deserialize, Serialize};

use super::error::AnnotationError;
use super::power::{Contention, DevicePower};
use super::sweep::ChunkSweep;
use super::vendor_table::VendorTable;
use crate::model::{AnchorSource, DevicePeaks, Roofline};
use crate::predict::Calibrated;

/// Revision of the document's content. A reader accepts this revision and older ones.
pub const ANNOTATIONS_REVISION: u32 = 1;

/// Longest document that is read, in bytes. Chosen: ten times what a bundle for three NPU platforms needs.
pub const ANNOTATIONS_BYTES_MAX: usize = 1 << 20;

/// The root of the document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Annotations {
    /// See [`ANNOTATIONS_REVISION`].
    pub revision: u32,
    /// Machines, each by the name of its SoC file.
    pub socs: Vec<SocAnnotation>,
}

/// One machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocAnnotation {
    /// Name of its SoC file, e.g. `core-ultra-5-125h`.
    pub name: String,
    /// Its devices, in the order of the SoC file.
    pub devices: Vec<DeviceAnnotation>,
    /// Contention between devices; empty if not measured.
    #[serde(default)]
    pub contention: Vec<Contention>,
    /// The sweep that chose the prefill chunk.
    #[serde(default)]
    pub sweep: Option<ChunkSweep>,
}

/// One device of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceAnnotation {
    /// The device class, which decides the kernel variants it runs.
    pub class: DeviceClass,
    /// OpenVINO device, e.g. `GPU.0`.
    pub openvino: String,
    /// Platform and clock, for an NPU.
    #[serde(default)]
    pub npu: Option<NpuAnnotation>,
    /// P_peak and B_peak, if known.
    #[serde(default)]
    pub peaks: Option<DevicePeaks>,
    /// Power while busy, if known.
    #[serde(default)]
    pub power: Option<DevicePower>,
    /// Roofline of the data sheet ([`AnchorSource::Spec`]), for variants without an entry of their own.
    #[serde(default)]
    pub spec: Option<Roofline>,
    /// Variants with a prediction of their own, in the order of the manifest.
    #[serde(default)]
    pub variants: Vec<VariantAnnotation>,
}

/// The properties of a machine's NPU on which blobs depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "Npu", deny_unknown_fields)]
pub struct NpuAnnotation {
    /// The platform, which decides the blobs it runs.
    pub platform: NpuPlatform,
    /// The clock at which latencies are read off the vendor's tables; `None` takes a table's highest.
    pub frequency_mhz: Option<u32>,
}

/// The annotation of one variant on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantAnnotation {
    /// Name of the kernel, e.g. `ffn`.
    pub kernel: String,
    /// Shape class of the variant.
    pub shape: ShapeClass,
    /// Weight binding of the variant.
    pub binding: Binding,
    /// The source of the prediction's anchors.
    pub source: AnchorSource,
    /// Latency over the work of a run.
    pub prediction: Prediction,
}

/// The function from the size of a run to its latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Prediction {
    /// Work and traffic against the ceilings that follow from two anchors: dynamic variants.
    Roofline(Roofline),
    /// One latency for each frequency of the NPU: a static variant with a blob.
    Vendor(VendorTable),
    /// A table over the sizes of calls, with the roofline fitted to it beyond: measured variants.
    Measured(Calibrated),
}

impl Annotations {
    /// Makes a document of these machines.
    pub fn new(socs: Vec<SocAnnotation>) -> Self {
        Annotations {
            revision: ANNOTATIONS_REVISION,
            socs,
        }
    }

    /// Reads a document.
    ///
    /// Errors: [`AnnotationError::TooLong`], [`AnnotationError::Syntax`] (also for a number that its type
    /// refuses), [`AnnotationError::Revision`], [`AnnotationError::Twice`].
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        if text.len() > ANNOTATIONS_BYTES_MAX {
            return Err(AnnotationError::TooLong {
                found: text.len(),
                limit: ANNOTATIONS_BYTES_MAX,
            });
        }
        let found: Self = options()
            .from_str(text)
            .map_err(|error| too_new(text).unwrap_or_else(|| syntax(&error)))?;
        found.check()?;
        Ok(found)
    }

    /// The document's text, the same for equal documents.
    ///
    /// Errors: those of [`Annotations::parse`], for a document that it would refuse.
    pub fn to_text(&self) -> Result<String, AnnotationError> {
        self.check()?;
        let text = options()
            .to_string(self)
            .map_err(|error| AnnotationError::Syntax {
                line: 1,
                column: 1,
                message: error.to_string(),
            })?;
        match text.len() > ANNOTATIONS_BYTES_MAX {
            true => Err(AnnotationError::TooLong {
                found: text.len(),
                limit: ANNOTATIONS_BYTES_MAX,
            }),
            false => Ok(text),
        }
    }

    /// The machine of this name.
    pub fn soc(&self, name: &str) -> Option<&SocAnnotation> {
        self.socs.iter().find(|soc| soc.name == name)
    }

    /// Lays another document over this one: its numbers replace ours, and anything that it does not mention stays. Used
    /// to lay measurements of a device over the bundle's own estimates.
    pub fn overlay(&mut self, over: Annotations) {
        for soc in over.socs {
            match self.socs.iter_mut().find(|own| own.name == soc.name) {
                Some(own) => own.overlay(soc),
                None => self.socs.push(soc),
            }
        }
    }

    fn check(&self) -> Result<(), AnnotationError> {
        check_revision(self.revision)?;
        let names = self.socs.iter().map(|soc| soc.name.clone());
        check_unique("SoC", names)?;
        for soc in &self.socs {
            let devices = soc.devices.iter();
            check_unique(
                "device",
                devices.map(|device| format!("{:?} {}", device.class, device.openvino)),
            )?;
            for device in &soc.devices {
                let variants = device.variants.iter();
                check_unique(
                    "variant",
                    variants.map(|entry| {
                        format!("{} {:?} {:?}", entry.kernel, entry.shape, entry.binding)
                    }),
                )?;
            }
            let cells = soc.contention.iter();
            check_unique(
                "contention",
                cells.map(|cell| format!("{:?} beside {:?}", cell.subject(), cell.neighbour())),
            )?;
        }
        Ok(())
    }
}

impl SocAnnotation {
    /// The first device of a class, which is the one that the runtime binds.
    pub fn device(&self, class: DeviceClass) -> Option<&DeviceAnnotation> {
        self.devices.iter().find(|device| device.class == class)
    }

    /// See [`Annotations::overlay`].
    pub fn overlay(&mut self, over: SocAnnotation) {
        for device in over.devices {
            let same = |own: &&mut DeviceAnnotation| {
                own.class == device.class && own.openvino == device.openvino
            };
            match self.devices.iter_mut().find(same) {
                Some(own) => own.overlay(device),
                None => self.devices.push(device),
            }
        }
        for cell in over.contention {
            self.contention.retain(|own| {
                (own.subject(), own.neighbour()) != (cell.subject(), cell.neighbour())
            });
            self.contention.push(cell);
        }
        if over.sweep.is_some() {
            self.sweep = over.sweep;
        }
    }
}

impl DeviceAnnotation {
    /// The entry of a variant, if it has one.
    pub fn variant(
        &self,
        kernel: &str,
        shape: ShapeClass,
        binding: Binding,
    ) -> Option<&VariantAnnotation> {
        self.variants
            .iter()
            .find(|entry| entry.is_of(kernel, shape, binding))
    }

    fn overlay(&mut self, over: DeviceAnnotation) {
        self.npu = over.npu.or(self.npu);
        // Without a data sheet, peaks are what kernels reached: less than there is, where a data sheet says more.
        self.peaks = match over.spec {
            Some(_) => over.peaks.or(self.peaks),
            None => self.peaks.or(over.peaks),
        };
        self.power = over.power.or(self.power);
        self.spec = over.spec.or(self.spec);
        for entry in over.variants {
            let same =
                |own: &&mut VariantAnnotation| own.is_of(&entry.kernel, entry.shape, entry.binding);
            match self.variants.iter_mut().find(same) {
                Some(own) => *own = entry,
                None => self.variants.push(entry),
            }
        }
    }
}

impl VariantAnnotation {
    fn is_of(&self, kernel: &str, shape: ShapeClass, binding: Binding) -> bool {
        self.kernel == kernel && self.shape == shape && self.binding == binding
    }
}

fn options() -> ron::Options {
    ron::Options::default()
        .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME)
        .with_recursion_limit(64)
}

fn syntax(error: &ron::error::SpannedError) -> AnnotationError {
    AnnotationError::Syntax {
        line: error.span.start.line,
        column: error.span.start.col,
        message: error.code.to_string(),
    }
}

/// The error for an unreadable text that is of a later revision, with fields unknown here.
fn too_new(text: &str) -> Option<AnnotationError> {
    #[derive(Deserialize)]
    struct Head {
        revision: u32,
    }
    let head: Head = options().from_str(text).ok()?;
    check_revision(head.revision).err()
}

fn check_revision(found: u32) -> Result<(), AnnotationError> {
    match (1..=ANNOTATIONS_REVISION).contains(&found) {
        true => Ok(()),
        false => Err(AnnotationError::Revision {
            found,
            supported: ANNOTATIONS_REVISION,
        }),
    }
}

fn check_unique(
    what: &'static str,
    names: impl Iterator<Item = String>,
) -> Result<(), AnnotationError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if let Some(found) = seen.replace(name) {
            return Err(AnnotationError::Twice { what, found });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
