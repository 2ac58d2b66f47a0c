//! Weights for an NPU: it is lent the mapped file once, or takes one copy of them.
//!
//! Weights are bound as views of a range that the device knows, so all forms and places share it, and nothing is copied
//! or imported when a kernel runs (`heg_openvino::memory` says what happens otherwise). Platform 3720 takes no memory of
//! others with Linux' driver: there the weights are copied once, into memory of the device's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use heg_artifacts::manifest::{Binding, Manifest};
use heg_artifacts::{Bundle, SectionId};
use heg_openvino::{Core, DeviceMemory, HostBuffer, Loan, Memory};
use heg_spec::DeviceClass;

use crate::error::{ExecError, last_line, openvino};
use crate::mem::{MemoryHome, Way};
use crate::place::{all_places, place_use, use_sections};

/// The weights of a bundle, as an NPU knows them.
pub(super) enum Lending {
    /// No device has to know them.
    Nothing,
    /// The mapped bundle is lent, until this is dropped.
    Bundle {
        _loan: Loan,
        home: MemoryHome,
        bytes: u64,
    },
    /// Sections are copied on their first use.
    Copy {
        copy: Arc<WeightCopy>,
        home: MemoryHome,
        /// Why the bundle could not be lent.
        why: String,
    },
    /// The device takes neither: its plugin copies what is bound, at each inference.
    Refused(String),
}

/// Memory, and the offset of a section in it.
pub(super) type SectionPlace = (Arc<dyn Memory>, u64);

/// A copy of the sections that kernels bind, in memory of a device's.
pub(super) struct WeightCopy {
    buffer: Arc<HostBuffer>,
    /// Offset of each section.
    places: BTreeMap<SectionId, u64>,
    /// Sections that were copied.
    copied: Mutex<BTreeSet<SectionId>>,
}

impl Lending {
    /// Has a device know a bundle that lies in `memory`.
    pub(super) fn to(
        core: &Core,
        device: &str,
        bundle: &Arc<Bundle>,
        memory: &Arc<dyn Memory>,
    ) -> Self {
        let refused = |error: &heg_openvino::OpenvinoError| last_line(error);
        let known = match DeviceMemory::of(core, device) {
            Ok(known) => known,
            Err(error) => return Self::Refused(refused(&error)),
        };
        let why = match known.lend(Arc::clone(memory)) {
            Ok(loan) => {
                return Self::Bundle {
                    _loan: loan,
                    home: MemoryHome::on(known, Way::Lent),
                    bytes: memory.len() as u64,
                };
            }
            Err(error) => refused(&error),
        };
        match WeightCopy::new(bundle, &known) {
            Ok(copy) => Self::Copy {
                copy: Arc::new(copy),
                home: MemoryHome::on(known, Way::Own),
                why,
            },
            Err(ExecError::OpenVino { source, .. }) => {
                Self::Refused(format!("{why}; {}", refused(&source)))
            }
            Err(error) => Self::Refused(error.to_string()),
        }
    }

    /// The home of rows and caches, so that the device knows them too.
    pub(super) fn home(&self) -> MemoryHome {
        match self {
            Self::Bundle { home, .. } | Self::Copy { home, .. } => home.clone(),
            Self::Nothing | Self::Refused(_) => MemoryHome::default(),
        }
    }

    /// The copy of the weights, where the device has one.
    pub(super) fn copy(&self) -> Option<&Arc<WeightCopy>> {
        match self {
            Self::Copy { copy, .. } => Some(copy),
            Self::Nothing | Self::Bundle { .. } | Self::Refused(_) => None,
        }
    }
}

impl fmt::Display for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("not bound"),
            Self::Bundle { bytes, .. } => write!(f, "the bundle is lent once, {bytes} bytes"),
            Self::Copy { copy, why, .. } => write!(
                f,
                "one copy in memory of the device's, {} bytes, since the bundle cannot be lent: {why}",
                copy.bytes()
            ),
            Self::Refused(why) => write!(f, "copied at each inference: {why}"),
        }
    }
}

impl WeightCopy {
    /// Takes memory for all sections that a device's kernels bind: weights, and rotary tables.
    fn new(bundle: &Arc<Bundle>, device: &DeviceMemory) -> Result<Self, ExecError> {
        let mut places = BTreeMap::new();
        let mut end: u64 = 0;
        for id in bound_sections(bundle.manifest())? {
            let range = bundle.section_range(id).map_err(ExecError::Section)?;
            places.insert(id, end);
            end = (end + (range.end - range.start)).next_multiple_of(ALIGNMENT);
        }
        let bytes = usize::try_from(end).unwrap_or(usize::MAX);
        let buffer = HostBuffer::of_device(bytes, device);
        Ok(Self {
            buffer: Arc::new(buffer.map_err(openvino("copy of the weights"))?),
            places,
            copied: Mutex::default(),
        })
    }

    /// The memory of all sections, and the offset of one; `None` if it is none of those that are bound. Its hash was
    /// checked when it was first copied.
    pub(super) fn section(
        &self,
        bundle: &Bundle,
        id: SectionId,
    ) -> Result<Option<SectionPlace>, ExecError> {
        let Some(offset) = self.places.get(&id).copied() else {
            return Ok(None);
        };
        // A thread that panicked noted nothing: the section is copied again.
        let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        if !copied.contains(&id) {
            let bytes = bundle.section(id).map_err(ExecError::Section)?;
            let written = self.buffer.write(offset as usize, bytes);
            written.map_err(openvino("copy of the weights"))?;
            copied.insert(id);
        }
        Ok(Some((self.buffer.clone(), offset)))
    }

    /// Bytes of the copy.
    pub(super) fn bytes(&self) -> u64 {
        self.buffer.len() as u64
    }
}

/// The sections that NPU kernels are given as tensors.
fn bound_sections(manifest: &Manifest) -> Result<BTreeSet<SectionId>, ExecError> {
    let mut ids = BTreeSet::new();
    for place in all_places(manifest)? {
        let used = place_use(manifest, place)?;
        let kernel = manifest.kernels.get(used.kernel.0 as usize);
        let variants = kernel.map_or(&[][..], |kernel| &kernel.variants);
        let binds = |class, binding| class == DeviceClass::Npu && binding == Binding::Input;
        if variants.iter().any(|it| binds(it.device, it.binding)) {
            ids.extend(use_sections(manifest, used));
        }
    }
    ids.extend(manifest.rope.iter().flat_map(|it| [it.cos, it.sin]));
    Ok(ids)
}

/// Alignment of a section in the copy: that of a line of cache, which no element exceeds.
const ALIGNMENT: u64 = 64;
