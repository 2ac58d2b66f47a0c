//! Checks a manifest for consistency; readers and the writer share this check.
//!
//! Manifests come from files, so nothing in them is trusted: not an index, not a product of dimensions. A manifest that
//! passes may be indexed without further checks: every id is in range, every section is listed, and every length is the
//! product of its shape. The first contradiction is reported, with the path of its field.
//!
//! Not checked here: the bytes of sections (an IR may be nonsense), and whether a host can run a variant.

#![deny(clippy::arithmetic_side_effects)]

mod answers;
mod gpu;
mod graph;
mod kernels;
mod model;
mod pieces;
mod sections;
mod states;
mod uses;

use std::fmt::Display;

use crate::error::{BundlePart, Error};
use crate::manifest::{ElementType, MANIFEST_REVISION, Manifest, Provenance, Role};
use crate::plain::is_plain;
use heg_spec::GroupColumns;

/// Checks the whole manifest against itself.
///
/// Errors: [`Error::TooNew`], [`Error::InvalidManifest`].
pub(crate) fn check_manifest(manifest: &Manifest) -> Result<(), Error> {
    let Manifest {
        revision,
        model,
        text,
        embedding,
        vectors,
        rope,
        weights,
        literals: _,
        kernels,
        layers,
        head,
        heg,
        known_answers,
        annotations: _,
        partitions: _,
        pieces: _,
        gpu,
        states: _,
        provenance,
        sections: _,
    } = manifest;
    check_revision(*revision)?;
    check_provenance(provenance)?;
    let widths = model::check_model(model, vectors.as_ref())?;
    model::check_text(text, model)?;
    let lengths = sections::check_sections(manifest)?;
    sections::check_weights(weights, &lengths)?;
    sections::check_rope(rope, model, &lengths)?;
    model::check_embedding(embedding, weights, (model, vectors.as_ref()))?;
    let gives = match vectors {
        Some(_) => Role::Vector,
        None => Role::Logits,
    };
    kernels::check_kernels(kernels, &widths, gives)?;
    uses::check_layers(layers, manifest)?;
    uses::check_head(head, manifest)?;
    pieces::check_pieces(manifest, &lengths)?;
    gpu::check_gpu(gpu.as_ref(), &lengths)?;
    states::check_states(manifest, &lengths)?;
    answers::check_answers(known_answers.as_ref(), manifest, &lengths)?;
    graph::check_graphs(heg, manifest)
}

fn check_revision(found: u32) -> Result<(), Error> {
    if found > MANIFEST_REVISION {
        return Err(Error::TooNew {
            part: BundlePart::ManifestRevision,
            found,
            supported: MANIFEST_REVISION,
        });
    }
    if found == 0 {
        return Err(Error::invalid(
            "revision",
            "`0`",
            format!("`1` to `{MANIFEST_REVISION}`"),
        ));
    }
    Ok(())
}

/// Fails unless both sides are equal.
fn check_equal<T: PartialEq + Display>(
    field: impl FnOnce() -> String,
    found: T,
    expected: T,
    why: &str,
) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::invalid(
        field(),
        format!("`{found}`"),
        format!("`{expected}`, {why}"),
    ))
}

/// Fails for zero.
fn check_nonzero(field: impl FnOnce() -> String, found: u64) -> Result<(), Error> {
    if found != 0 {
        return Ok(());
    }
    Err(Error::invalid(field(), "`0`", "at least `1`"))
}

/// Fails for invisible names and for names that a terminal would not show verbatim.
fn check_name(field: impl FnOnce() -> String, name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::invalid(field(), "empty", "a name"));
    }
    check_plain(field, name)
}

/// Fails for text that a terminal would not show verbatim.
fn check_plain(field: impl FnOnce() -> String, text: &str) -> Result<(), Error> {
    if text.chars().all(is_plain) {
        return Ok(());
    }
    let found = format!("`{}`", text.escape_debug());
    let expected = "text without control characters";
    Err(Error::invalid(field(), found, expected))
}

fn check_provenance(provenance: &Provenance) -> Result<(), Error> {
    let Provenance {
        compiler,
        openvino,
        npu_compiler,
        inputs,
    } = provenance;
    check_plain(|| "provenance.compiler".to_owned(), compiler)?;
    check_plain(|| "provenance.openvino".to_owned(), openvino)?;
    let npu_compiler = npu_compiler.as_deref().unwrap_or_default();
    check_plain(|| "provenance.npu_compiler".to_owned(), npu_compiler)?;
    let mut names = inputs.keys();
    names.try_for_each(|name| check_plain(|| "provenance.inputs".to_owned(), name))
}

/// Checks that a shape has one or two dimensions, none of them zero.
fn check_shape(field: impl Fn() -> String, shape: &[u32]) -> Result<(), Error> {
    if !(1..=2).contains(&shape.len()) {
        return Err(Error::invalid(
            field(),
            format!("{shape:?}"),
            "one or two dimensions",
        ));
    }
    if shape.contains(&0) {
        return Err(Error::invalid(
            field(),
            format!("{shape:?}"),
            "dimensions of at least `1`",
        ));
    }
    Ok(())
}

/// Checks that integers, which have scales, have two dimensions.
fn check_rank(
    field: impl FnOnce() -> String,
    element: ElementType,
    shape: &[u32],
) -> Result<(), Error> {
    match (element, shape) {
        (ElementType::I8 | ElementType::I4 | ElementType::U4, [_, _]) => Ok(()),
        (ElementType::I8 | ElementType::I4 | ElementType::U4, _) => Err(Error::invalid(
            field(),
            format!("{shape:?}"),
            format!("two dimensions for {element:?}"),
        )),
        (_, _) => Ok(()),
    }
}

/// Checks that 4-bit integers, and no other elements, have column groups, and that the groups divide the columns.
fn check_groups(
    field: impl Fn(&str) -> String,
    element: ElementType,
    shape: &[u32],
    group_columns: Option<GroupColumns>,
) -> Result<(), Error> {
    match (element.is_grouped(), group_columns) {
        (false, None) => Ok(()),
        (true, Some(group)) => {
            let columns = shape.last().copied().unwrap_or(0);
            if columns.is_multiple_of(group.count()) {
                return Ok(());
            }
            let expected = format!("a divisor of `{columns}` columns");
            let field = field("group_columns");
            Err(Error::invalid(field, format!("`{group}`"), expected))
        }
        (true, None) => {
            let expected = format!("columns of a group for {element:?}");
            Err(Error::invalid(field("group_columns"), "`None`", expected))
        }
        (false, Some(group)) => {
            let expected = format!("`None` for {element:?}");
            let field = field("group_columns");
            Err(Error::invalid(field, format!("`{group}`"), expected))
        }
    }
}

/// Size of a shape's elements in bytes; `None` if it does not fit.
fn bytes_of(shape: &[u32], element: ElementType) -> Option<u64> {
    let elements = shape.iter().try_fold(1_u64, |elements, &dimension| {
        elements.checked_mul(dimension.into())
    })?;
    element.bytes_of(elements)
}
