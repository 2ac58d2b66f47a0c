//! The blobs of the bundles that settings name, and the kernels that they are of.

use std::sync::OnceLock;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{Blob, Kernel, RowsPiece, Variant};

use crate::error::SoftNpuError;
use crate::log::note;
use crate::settings::settings;

/// The source of a blob.
pub(super) enum BlobSource<'c> {
    /// A kernel of a bundle.
    Kernel(CatalogEntry<'c>),
    /// A piece of a product.
    Piece(&'c RowsPiece),
}

/// The place of a blob's description.
pub(super) struct CatalogEntry<'c> {
    pub(super) bundle: &'c Bundle,
    pub(super) kernel: &'c Kernel,
    /// The variant that was compiled to the blob.
    pub(super) variant: &'c Variant,
}

/// The bundles of this process; those that cannot be read are in the log.
pub(super) fn bundles() -> &'static [Bundle] {
    static BUNDLES: OnceLock<Vec<Bundle>> = OnceLock::new();
    BUNDLES.get_or_init(|| {
        let open = |path: &std::path::PathBuf| {
            let opened = Bundle::open(path).map_err(|source| SoftNpuError::Bundle {
                path: path.display().to_string(),
                source,
            });
            opened
                .inspect_err(|error| note!("REFUSED bundle: {error}"))
                .ok()
        };
        settings().bundles.iter().filter_map(open).collect()
    })
}

/// Finds a blob by its bytes. The plugin keeps its own record behind a blob, and passes on what is before it.
pub(super) fn find<'c>(
    bundles: &'c [Bundle],
    bytes: &[u8],
    name: &str,
) -> Result<BlobSource<'c>, SoftNpuError> {
    for bundle in bundles {
        let has = |blobs: &[Blob]| {
            let mut sections = blobs.iter().map(|blob| blob.section);
            sections.any(|section| {
                let section = bundle.section_unverified(section).unwrap_or_default();
                section.starts_with(bytes)
            })
        };
        let mut pieces = bundle.manifest().pieces.iter();
        if let Some(piece) = pieces.find(|piece| has(&piece.blobs)) {
            return Ok(BlobSource::Piece(piece));
        }
        for kernel in &bundle.manifest().kernels {
            for variant in &kernel.variants {
                if has(&variant.blobs) {
                    return Ok(BlobSource::Kernel(CatalogEntry {
                        bundle,
                        kernel,
                        variant,
                    }));
                }
            }
        }
    }
    Err(SoftNpuError::Unknown {
        name: name.to_owned(),
        bytes: bytes.len(),
        bundles: bundles.len(),
    })
}
