//! All references of a manifest to sections, in one place.
//!
//! Checking, naming sections for people and collecting the sections to write all walk the same list. A field that holds
//! a [`SectionId`] but is *not* a section (hashes of inputs, in `provenance` and `weights[].source`) is left out here,
//! explicitly: every struct is destructured completely, so that whoever adds a field to the manifest has to decide.

use std::fmt;

use crate::content_id::SectionId;
use crate::manifest::{
    BakedState, Blob, GpuModule, GpuPart, Kernel, KernelUse, Layer, Manifest, RopeTable, RowsPiece,
    ShapeClass, Text, Variant, Weight,
};
use heg_spec::Group;

/// A field of a manifest that names a section. Indices are those of the manifest's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reference {
    /// `text.tokenizer`.
    Tokenizer,
    /// `text.chat_template`.
    ChatTemplate,
    /// `rope[i].cos`.
    RopeCos(usize),
    /// `rope[i].sin`.
    RopeSin(usize),
    /// `weights[i].values`.
    WeightValues(usize),
    /// `weights[i].scales`.
    WeightScales(usize),
    /// `weights[i].centres`.
    WeightCentres(usize),
    /// `literals`.
    Literals,
    /// `kernels[i].variants[j].ir`.
    VariantIr(usize, usize),
    /// `kernels[i].variants[j].program`.
    VariantProgram(usize, usize),
    /// `kernels[i].variants[j].blobs[k].section`.
    Blob(usize, usize, usize),
    /// `layers[i].qkv.answer`, `.mha.` or `.ffn.`, by the kernel's group; `head.answer` without a layer.
    Answer(Option<usize>, Group),
    /// `annotations`.
    Annotations,
    /// `partitions`.
    Partitions,
    /// `pieces[i].blobs[j].section`.
    PieceBlob(usize, usize),
    /// `gpu.modules[i].section`.
    GpuModule(usize),
    /// `states[i].beginning`.
    StateBeginning(usize),
    /// `states[i].pages[j]`.
    StatePage(usize, usize),
}

impl Reference {
    /// The section's name for people, e.g. ``weight `model.norm.weight` values``.
    pub fn label(&self, manifest: &Manifest) -> String {
        let weight = |index: usize| {
            manifest
                .weights
                .get(index)
                .map_or("?", |weight| &weight.name)
        };
        match *self {
            Self::Tokenizer => "tokenizer".to_owned(),
            Self::ChatTemplate => "chat template".to_owned(),
            Self::RopeCos(index) => format!("rope table `{index}` cosines"),
            Self::RopeSin(index) => format!("rope table `{index}` sines"),
            Self::WeightValues(index) => format!("weight `{}` values", weight(index)),
            Self::WeightScales(index) => format!("weight `{}` scales", weight(index)),
            Self::WeightCentres(index) => format!("weight `{}` centres", weight(index)),
            Self::Literals => "literals of the kernels".to_owned(),
            Self::VariantIr(kernel, variant) => variant_label(manifest, kernel, variant, "IR"),
            Self::VariantProgram(kernel, variant) => {
                variant_label(manifest, kernel, variant, "program")
            }
            Self::Blob(kernel, variant, blob) => {
                let platform = manifest
                    .kernels
                    .get(kernel)
                    .and_then(|kernel| kernel.variants.get(variant)?.blobs.get(blob))
                    .map_or("?".to_owned(), |blob| blob.platform.to_string());
                let what = format!("blob (platform {platform})");
                variant_label(manifest, kernel, variant, &what)
            }
            Self::Answer(Some(layer), group) => {
                format!("known answer of `{}` in layer {layer}", group.name())
            }
            Self::Answer(None, _) => "known answer of the head".to_owned(),
            Self::Annotations => "annotations".to_owned(),
            Self::Partitions => "partitions".to_owned(),
            Self::PieceBlob(piece, blob) => piece_label(manifest, piece, blob),
            Self::GpuModule(index) => {
                let modules = manifest.gpu.as_ref().map(|gpu| gpu.modules.as_slice());
                let module = modules.and_then(|modules| modules.get(index));
                format!("GPU module `{}`", module.map_or("?", |module| &module.name))
            }
            Self::StateBeginning(state) => {
                format!("beginning of state `{}`", state_name(manifest, state))
            }
            Self::StatePage(state, page) => {
                format!("page {page} of state `{}`", state_name(manifest, state))
            }
        }
    }
}

/// Formats the path of the field, for errors about manifests.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokenizer => f.write_str("text.tokenizer"),
            Self::ChatTemplate => f.write_str("text.chat_template"),
            Self::RopeCos(index) => write!(f, "rope[{index}].cos"),
            Self::RopeSin(index) => write!(f, "rope[{index}].sin"),
            Self::WeightValues(index) => write!(f, "weights[{index}].values"),
            Self::WeightScales(index) => write!(f, "weights[{index}].scales"),
            Self::WeightCentres(index) => write!(f, "weights[{index}].centres"),
            Self::Literals => f.write_str("literals"),
            Self::VariantIr(kernel, variant) => {
                write!(f, "kernels[{kernel}].variants[{variant}].ir")
            }
            Self::VariantProgram(kernel, variant) => {
                write!(f, "kernels[{kernel}].variants[{variant}].program")
            }
            Self::Blob(kernel, variant, blob) => write!(
                f,
                "kernels[{kernel}].variants[{variant}].blobs[{blob}].section"
            ),
            Self::Answer(Some(layer), group) => {
                write!(f, "layers[{layer}].{}.answer", group.name())
            }
            Self::Answer(None, _) => f.write_str("head.answer"),
            Self::Annotations => f.write_str("annotations"),
            Self::Partitions => f.write_str("partitions"),
            Self::PieceBlob(piece, blob) => write!(f, "pieces[{piece}].blobs[{blob}].section"),
            Self::GpuModule(index) => write!(f, "gpu.modules[{index}].section"),
            Self::StateBeginning(state) => write!(f, "states[{state}].beginning"),
            Self::StatePage(state, page) => write!(f, "states[{state}].pages[{page}]"),
        }
    }
}

/// Returns all references of a manifest, in the order of its fields. A section may come up several times.
///
/// The compiler derives [`Manifest::sections`] from it; the reader uses it for its checks.
pub fn references(manifest: &Manifest) -> Vec<(Reference, SectionId)> {
    let Manifest {
        revision: _,
        model: _,
        text,
        embedding: _,
        vectors: _,
        rope,
        weights,
        literals,
        kernels,
        layers,
        head,
        heg: _,
        known_answers: _,
        annotations,
        partitions,
        pieces,
        gpu,
        states,
        provenance: _,
        sections: _,
    } = manifest;
    let mut found = Vec::new();
    push_text(text, &mut found);
    for (index, table) in rope.iter().enumerate() {
        let RopeTable {
            rows: _,
            width: _,
            cos,
            sin,
        } = table;
        found.push((Reference::RopeCos(index), *cos));
        found.push((Reference::RopeSin(index), *sin));
    }
    for (index, weight) in weights.iter().enumerate() {
        let Weight {
            name: _,
            element: _,
            shape: _,
            group_columns: _,
            values,
            scales,
            centres,
            source: _,
        } = weight;
        found.push((Reference::WeightValues(index), *values));
        found.extend(scales.map(|id| (Reference::WeightScales(index), id)));
        found.extend(centres.map(|id| (Reference::WeightCentres(index), id)));
    }
    found.push((Reference::Literals, *literals));
    for (index, kernel) in kernels.iter().enumerate() {
        push_kernel(index, kernel, &mut found);
    }
    for (index, layer) in layers.iter().enumerate() {
        let Layer { qkv, mha, ffn } = layer;
        for (group, place) in [(Group::Qkv, qkv), (Group::Mha, mha), (Group::Ffn, ffn)] {
            push_use(Reference::Answer(Some(index), group), place, &mut found);
        }
    }
    push_use(Reference::Answer(None, Group::Head), head, &mut found);
    found.extend(annotations.map(|id| (Reference::Annotations, id)));
    found.extend(partitions.map(|id| (Reference::Partitions, id)));
    push_pieces(pieces, &mut found);
    push_gpu(gpu.as_ref(), &mut found);
    for (index, state) in states.iter().enumerate() {
        push_state(index, state, &mut found);
    }
    found
}

fn push_pieces(pieces: &[RowsPiece], found: &mut Vec<(Reference, SectionId)>) {
    for (index, piece) in pieces.iter().enumerate() {
        let RowsPiece {
            form: _,
            rows: _,
            tokens: _,
            activations: _,
            blobs,
        } = piece;
        push_blobs(blobs, |number| Reference::PieceBlob(index, number), found);
    }
}

fn push_blobs(
    blobs: &[Blob],
    reference: impl Fn(usize) -> Reference,
    found: &mut Vec<(Reference, SectionId)>,
) {
    for (number, blob) in blobs.iter().enumerate() {
        let Blob {
            platform: _,
            compatibility: _,
            section,
        } = blob;
        found.push((reference(number), *section));
    }
}

fn push_gpu(gpu: Option<&GpuPart>, found: &mut Vec<(Reference, SectionId)>) {
    let Some(GpuPart { modules }) = gpu else {
        return;
    };
    for (index, module) in modules.iter().enumerate() {
        let GpuModule {
            name: _,
            section,
            shapes: _,
        } = module;
        found.push((Reference::GpuModule(index), *section));
    }
}

fn push_state(index: usize, state: &BakedState, found: &mut Vec<(Reference, SectionId)>) {
    let BakedState {
        name: _,
        beginning,
        form: _,
        page_tokens: _,
        tokens: _,
        pages,
    } = state;
    found.push((Reference::StateBeginning(index), *beginning));
    for (number, page) in pages.iter().enumerate() {
        found.push((Reference::StatePage(index, number), *page));
    }
}

fn push_use(answered: Reference, place: &KernelUse, found: &mut Vec<(Reference, SectionId)>) {
    let KernelUse {
        kernel: _,
        weights: _,
        rope: _,
        answer,
    } = place;
    found.extend(answer.map(|id| (answered, id)));
}

fn push_text(text: &Text, found: &mut Vec<(Reference, SectionId)>) {
    let Text {
        tokenizer,
        chat_template,
        special_tokens: _,
        eos_ids: _,
    } = text;
    found.extend(tokenizer.map(|id| (Reference::Tokenizer, id)));
    found.extend(chat_template.map(|id| (Reference::ChatTemplate, id)));
}

fn push_kernel(index: usize, kernel: &Kernel, found: &mut Vec<(Reference, SectionId)>) {
    let Kernel {
        name: _,
        group: _,
        ops: _,
        inputs: _,
        outputs: _,
        parameters: _,
        work: _,
        variants,
    } = kernel;
    for (position, variant) in variants.iter().enumerate() {
        let Variant {
            device: _,
            shape: _,
            binding: _,
            activations: _,
            kv_cache: _,
            takes_trees: _,
            ir,
            program,
            tolerance: _,
            blobs,
        } = variant;
        found.push((Reference::VariantIr(index, position), *ir));
        found.extend(program.map(|id| (Reference::VariantProgram(index, position), id)));
        push_blobs(
            blobs,
            |number| Reference::Blob(index, position, number),
            found,
        );
    }
}

/// A section's name for people: its first use.
pub(crate) fn label(manifest: &Manifest, id: SectionId) -> String {
    references(manifest)
        .into_iter()
        .find(|(_, used)| *used == id)
        .map_or_else(
            || "nothing refers to it".to_owned(),
            |(reference, _)| reference.label(manifest),
        )
}

fn state_name(manifest: &Manifest, state: usize) -> &str {
    manifest.states.get(state).map_or("?", |state| &state.name)
}

fn piece_label(manifest: &Manifest, piece: usize, blob: usize) -> String {
    let found = manifest.pieces.get(piece);
    let of_blob = found.and_then(|piece| Some((piece, piece.blobs.get(blob)?)));
    let Some((piece, blob)) = of_blob else {
        return format!("blob of piece `{piece}`");
    };
    let (rows, columns, tokens) = (piece.rows, piece.form.columns, piece.tokens);
    format!(
        "blob (platform {}) for {rows} rows of {columns} columns over {tokens} tokens",
        blob.platform
    )
}

fn variant_label(manifest: &Manifest, kernel: usize, variant: usize, what: &str) -> String {
    let Some(kernel) = manifest.kernels.get(kernel) else {
        return format!("kernel `{kernel}` {what}");
    };
    let Some(found) = kernel.variants.get(variant) else {
        return format!("kernel `{}` variant `{variant}` {what}", kernel.name);
    };
    let device = found.device.name();
    let shape = match found.shape {
        ShapeClass::Dynamic => "dynamic".to_owned(),
        ShapeClass::Static { tokens } => format!("static {tokens}"),
        ShapeClass::Bucket { tokens, context } => format!("static {tokens} over {context}"),
    };
    format!("kernel `{}` {what} for {device}, {shape}", kernel.name)
}
