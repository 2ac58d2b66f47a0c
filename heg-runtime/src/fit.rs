//! The memory that a model takes on a machine by its manifest, and the memory that is there.

use heg_artifacts::manifest::ElementType;
use heg_artifacts::{Manifest, slice};

use crate::platform;

/// The memory that a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Bytes of everything that is mapped but NPU blobs: weights above all.
    pub mapped_bytes: u64,
    /// Bytes of keys and values of a token, as CPU programs keep them: a byte for an element, and scales, where they are of
    /// 8 bits, else two for an element.
    pub token_bytes: u64,
}

impl MemoryNeed {
    /// The need of a bundle's model.
    pub fn of(manifest: &Manifest) -> Self {
        let model = &manifest.model;
        let width = model.kv_heads.saturating_mul(model.head_dim);
        let row_bytes = narrowest(manifest).cache_row_bytes(width, model.head_dim);
        let sections = slice(manifest, None).sections.into_iter();
        Self {
            mapped_bytes: sections.map(|section| section.bytes).sum(),
            token_bytes: (2 * manifest.layers.len() as u64)
                .saturating_mul(row_bytes.unwrap_or(u64::MAX)),
        }
    }

    /// Bytes with a context of this many tokens.
    pub fn with_context(&self, tokens: u32) -> u64 {
        let cache = self.token_bytes.saturating_mul(u64::from(tokens));
        self.mapped_bytes.saturating_add(cache)
    }
}

/// Element type of keys and values where programs keep them as narrow as the bundle has them.
fn narrowest(manifest: &Manifest) -> ElementType {
    let mut variants = manifest.kernels.iter().flat_map(|kernel| &kernel.variants);
    let has_integers = variants.any(|variant| variant.kv_cache == Some(ElementType::I8));
    match has_integers {
        true => ElementType::I8,
        false => ElementType::Bf16,
    }
}

/// Bytes of memory that a new process may use without others losing theirs, by the machine and by its control groups;
/// `None` if the system does not say.
pub fn available_bytes() -> Option<u64> {
    platform::available_bytes()
}
