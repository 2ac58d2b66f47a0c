//! The part of a bundle that decides what its programs compute.

use crate::content_id::SectionId;
use crate::error::Error;
use crate::manifest::{Manifest, Provenance, StageGraphs, Text};
use crate::slice;
use crate::writer::encode_manifest;

/// Returns the name of what a bundle's programs compute: bundles that have it in common give the same keys and values
/// for the same tokens, in the same arithmetic. It is the hash of a manifest without everything else: its name, texts,
/// blobs, forms without a program, execution graphs (they follow from the rest), known answers, what is known of speed,
/// modules for GPUs, states and origin.
///
/// So it is the same for all slices of a bundle, and with another template or other states.
///
/// # Errors
///
/// [`Error::EncodeManifest`], [`Error::TooLarge`].
pub fn computation_id(manifest: &Manifest) -> Result<SectionId, Error> {
    let mut rest = slice::without_answers(manifest);
    rest.model.name.clear();
    rest.model.chunk_tokens.clear();
    rest.text = Text::default();
    rest.heg = StageGraphs::default();
    rest.annotations = None;
    rest.partitions = None;
    rest.pieces.clear();
    rest.gpu = None;
    rest.states.clear();
    rest.provenance = Provenance {
        compiler: String::new(),
        openvino: String::new(),
        npu_compiler: None,
        inputs: [].into(),
    };
    rest.sections.clear();
    for kernel in &mut rest.kernels {
        kernel.variants.retain(|variant| variant.program.is_some());
        for variant in &mut kernel.variants {
            variant.blobs.clear();
        }
    }
    Ok(SectionId::of(&encode_manifest(&rest)?))
}
