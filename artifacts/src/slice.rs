//! A bundle for one kind of device: the full one without the NPU blobs of other platforms.
//!
//! Slices are made from a manifest alone, so that whoever has the full bundle makes the same slice with the same name
//! on every machine. IRs and programs stay: a device whose driver refuses a blob compiles or computes by them.

use std::collections::BTreeSet;

use heg_spec::NpuPlatform;

use crate::content_id::SectionId;
use crate::manifest::{BakedState, Blob, Manifest, Section};
use crate::parts;

/// Platforms that a bundle has blobs for, ascending.
pub fn platforms(manifest: &Manifest) -> BTreeSet<NpuPlatform> {
    blobs(manifest).map(|blob| blob.platform).collect()
}

/// Returns the manifest of a bundle with the blobs of one platform, or without any. Sections that nothing refers to any
/// more are left out, and the rest is in the writer's order.
pub fn slice(manifest: &Manifest, platform: Option<NpuPlatform>) -> Manifest {
    let mut sliced = manifest.clone();
    let variants = sliced.kernels.iter_mut();
    for variant in variants.flat_map(|kernel| &mut kernel.variants) {
        variant.blobs.retain(|blob| Some(blob.platform) == platform);
    }
    for piece in &mut sliced.pieces {
        piece.blobs.retain(|blob| Some(blob.platform) == platform);
    }
    sliced.pieces.retain(|piece| !piece.blobs.is_empty());
    parts::sort_sections(&mut sliced);
    sliced
}

/// Returns the manifest of a bundle without known answers, its sections as in [`slice()`].
pub fn without_answers(manifest: &Manifest) -> Manifest {
    let mut rest = manifest.clone();
    rest.known_answers = None;
    let layers = rest.layers.iter_mut();
    let uses = layers.flat_map(|layer| [&mut layer.qkv, &mut layer.mha, &mut layer.ffn]);
    for place in uses.chain([&mut rest.head]) {
        place.answer = None;
    }
    parts::sort_sections(&mut rest);
    rest
}

/// Returns the manifest of a bundle with a baked state, in place of one of the same name if there is one. `sections` are
/// those that the state refers to; the rest is as in [`slice()`].
pub fn with_state(manifest: &Manifest, state: BakedState, sections: &[Section]) -> Manifest {
    let mut baked = manifest.clone();
    baked.states.retain(|known| known.name != state.name);
    baked.states.push(state);
    baked.states.sort_by(|a, b| a.name.cmp(&b.name));
    let known: BTreeSet<SectionId> = baked.sections.iter().map(|section| section.id).collect();
    let mut new: Vec<Section> = sections.to_vec();
    new.retain(|section| !known.contains(&section.id));
    new.sort_by_key(|section| section.id);
    new.dedup();
    baked.sections.append(&mut new);
    parts::sort_sections(&mut baked);
    baked
}

/// The needs of a platform's blobs, of compiler and driver: the record of the blob with the newest ELF layout, e.g.
/// `compiler=8.4;npu=4000;elf=1.2.0`. `None` if there is no blob for it.
pub fn npu_needs(manifest: &Manifest, platform: NpuPlatform) -> Option<String> {
    let of_platform = blobs(manifest).filter(|blob| blob.platform == platform);
    let newest = of_platform.max_by_key(|blob| {
        let numbers = |text: &str| -> Vec<u64> {
            text.split('.')
                .map(|part| part.parse().unwrap_or(0))
                .collect()
        };
        let found = &blob.compatibility;
        (numbers(&found.elf), numbers(&found.compiler))
    })?;
    let found = &newest.compatibility;
    Some(format!(
        "compiler={};npu={platform};elf={}",
        found.compiler, found.elf
    ))
}

fn blobs(manifest: &Manifest) -> impl Iterator<Item = &Blob> {
    let variants = manifest.kernels.iter().flat_map(|kernel| &kernel.variants);
    let of_variants = variants.flat_map(|variant| &variant.blobs);
    of_variants.chain(manifest.pieces.iter().flat_map(|piece| &piece.blobs))
}
