//! Checks of the list of sections, and of the lengths that shapes imply.
//!
//! Every section has one entry and at least one reference, every reference has its entry, and if the manifest implies a
//! shape, the section has exactly that length. Sizes are multiplied with overflow checks: a shape whose product does
//! not fit in 64 bits is a contradiction, not a small section.

use std::collections::BTreeMap;

use super::{bytes_of, check_groups, check_name, check_nonzero, check_rank, check_shape};
use crate::content_id::SectionId;
use crate::error::Error;
use crate::manifest::{ElementType, Manifest, Model, RopeTable, Weight};
use crate::references::{Reference, references};

/// Lengths of the listed sections.
pub(super) struct Lengths(BTreeMap<SectionId, u64>);

impl Lengths {
    /// Bytes of the section at `reference`.
    pub(super) fn of(&self, reference: Reference, id: SectionId) -> Result<u64, Error> {
        let found = self.0.get(&id).copied();
        found.ok_or_else(|| {
            let field = reference.to_string();
            Error::invalid(field, format!("`{id}`"), "one of `sections`")
        })
    }

    /// Checks that the section at `reference` is `expected` bytes long; `None` is a length that does not fit in 64
    /// bits.
    pub(super) fn check_bytes(
        &self,
        reference: Reference,
        id: SectionId,
        expected: Option<u64>,
    ) -> Result<(), Error> {
        let found = self.0.get(&id).copied();
        if found.is_some() && found == expected {
            return Ok(());
        }
        let found = found.map_or("not listed".to_owned(), |bytes| {
            format!("a section of `{bytes}` bytes")
        });
        let expected = expected.map_or("fewer than 2^64".to_owned(), |bytes| format!("`{bytes}`"));
        let expected = format!("{expected} bytes");
        Err(Error::invalid(reference.to_string(), found, expected))
    }

    /// Checks that the section at `reference` is as long as `shape` implies.
    fn check(
        &self,
        reference: Reference,
        id: SectionId,
        shape: &[u32],
        element: ElementType,
    ) -> Result<(), Error> {
        let found = self.0.get(&id).copied();
        let expected = bytes_of(shape, element);
        if found.is_some() && found == expected {
            return Ok(());
        }
        let found = found.map_or("not listed".to_owned(), |bytes| {
            format!("a section of `{bytes}` bytes")
        });
        let expected = expected.map_or("fewer than 2^64".to_owned(), |bytes| format!("`{bytes}`"));
        let expected = format!("{expected} bytes for {shape:?} of {element:?}");
        Err(Error::invalid(reference.to_string(), found, expected))
    }
}

pub(super) fn check_sections(manifest: &Manifest) -> Result<Lengths, Error> {
    let mut unused = BTreeMap::new();
    let mut lengths = BTreeMap::new();
    for (index, section) in manifest.sections.iter().enumerate() {
        unused.insert(section.id, index);
        if lengths.insert(section.id, section.bytes).is_some() {
            let found = format!("`{}` once more", section.id);
            return Err(Error::invalid(
                format!("sections[{index}].id"),
                found,
                "every section once",
            ));
        }
    }
    for (reference, id) in references(manifest) {
        unused.remove(&id);
        if !lengths.contains_key(&id) {
            return Err(Error::invalid(
                reference.to_string(),
                format!("`{id}`"),
                "one of `sections`",
            ));
        }
    }
    if let Some((id, index)) = unused.into_iter().min_by_key(|(_, index)| *index) {
        let found = format!("`{id}`, which nothing refers to");
        return Err(Error::invalid(
            format!("sections[{index}].id"),
            found,
            "a section that is used",
        ));
    }
    Ok(Lengths(lengths))
}

pub(super) fn check_weights(weights: &[Weight], lengths: &Lengths) -> Result<(), Error> {
    for (index, weight) in weights.iter().enumerate() {
        let Weight {
            name,
            element,
            shape,
            group_columns,
            values,
            scales,
            centres,
            source: _,
        } = weight;
        check_name(|| format!("weights[{index}].name"), name)?;
        check_shape(|| format!("weights[{index}].shape"), shape)?;
        let field = |name: &str| format!("weights[{index}].{name}");
        check_groups(field, *element, shape, *group_columns)?;
        lengths.check(Reference::WeightValues(index), *values, shape, *element)?;
        check_rank(|| format!("weights[{index}].shape"), *element, shape)?;
        for (section, reference) in [
            (scales, Reference::WeightScales(index)),
            (centres, Reference::WeightCentres(index)),
        ] {
            let kind = affine_kind(*element, reference);
            check_affine(reference, weight, *section, kind, lengths)?;
        }
    }
    Ok(())
}

/// The kind of a weight's affine section: scales or centres.
#[derive(Clone, Copy)]
enum AffineKind {
    Required,
    Allowed,
    Absent,
}

fn affine_kind(element: ElementType, reference: Reference) -> AffineKind {
    let is_scale = matches!(reference, Reference::WeightScales(_));
    match element {
        ElementType::U4 => AffineKind::Required,
        ElementType::I4 | ElementType::I8 if is_scale => AffineKind::Required,
        ElementType::I8 => AffineKind::Allowed,
        _ => AffineKind::Absent,
    }
}

/// Checks that a section of scales or centres has an f32 for each row, or an f16 for each group of columns.
fn check_affine(
    reference: Reference,
    weight: &Weight,
    section: Option<SectionId>,
    kind: AffineKind,
    lengths: &Lengths,
) -> Result<(), Error> {
    let element = weight.element;
    match (section, kind) {
        (None, AffineKind::Required) => {
            let what = match reference {
                Reference::WeightScales(_) => "scales",
                _ => "centres",
            };
            let expected = format!("{what} for {element:?} rows");
            Err(Error::invalid(reference.to_string(), "`None`", expected))
        }
        (None, _) => Ok(()),
        (Some(id), AffineKind::Absent) => Err(Error::invalid(
            reference.to_string(),
            format!("`{id}`"),
            format!("`None` for {element:?}"),
        )),
        (Some(id), _) => match (weight.shape.as_slice(), weight.group_columns) {
            ([rows, columns], Some(group)) => {
                let groups = columns.checked_div(group.count()).unwrap_or(0);
                lengths.check(reference, id, &[*rows, groups], ElementType::F16)
            }
            (shape, _) => {
                let rows = shape.get(..1).unwrap_or_default();
                lengths.check(reference, id, rows, ElementType::F32)
            }
        },
    }
}

pub(super) fn check_rope(
    rope: &[RopeTable],
    model: &Model,
    lengths: &Lengths,
) -> Result<(), Error> {
    for (index, table) in rope.iter().enumerate() {
        let RopeTable {
            rows,
            width,
            cos,
            sin,
        } = table;
        check_nonzero(|| format!("rope[{index}].width"), (*width).into())?;
        if *width > model.head_dim / 2 {
            let expected = format!("at most half of `model.head_dim`: `{}`", model.head_dim);
            return Err(Error::invalid(
                format!("rope[{index}].width"),
                format!("`{width}`"),
                expected,
            ));
        }
        if *rows < model.context_tokens {
            let expected = format!(
                "at least `model.context_tokens`: `{}`",
                model.context_tokens
            );
            return Err(Error::invalid(
                format!("rope[{index}].rows"),
                format!("`{rows}`"),
                expected,
            ));
        }
        lengths.check(
            Reference::RopeCos(index),
            *cos,
            &[*rows, *width],
            ElementType::F32,
        )?;
        lengths.check(
            Reference::RopeSin(index),
            *sin,
            &[*rows, *width],
            ElementType::F32,
        )?;
    }
    Ok(())
}
