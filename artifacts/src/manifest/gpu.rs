//! GPU modules: SPIR-V that runs a bundle's programs, and the shapes that these need.
//!
//! A shape is a module with some of its specialisation constants overwritten: that is all that makes it a module for
//! this model. So a module's words are stored once, and of a shape its constants alone; copies of the words for each
//! shape would be several times as long. A driver gets the same words either way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::content_id::SectionId;

/// The GPU's part of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuPart {
    /// Its modules, by name, ascending.
    pub modules: Vec<GpuModule>,
}

/// A module, and the shapes in which the bundle's programs need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuModule {
    /// Name of its shader, e.g. `rms_norm`.
    pub name: String,
    /// Its words, packed as `FORMAT.md` says.
    pub section: SectionId,
    /// Its shapes, ascending: values of specialisation constants, by their numbers.
    pub shapes: Vec<BTreeMap<u32, u32>>,
}

/// Most bytes of all modules of a bundle together.
pub const GPU_BYTES_MAX: u64 = 300_000;
