//! The tensors of a GGUF file under Hugging Face's names, each with the change that undoes the conversion.

use std::collections::BTreeMap;
use std::ops::Range;

use heg_artifacts::Mapping;

use super::super::error::IngestError;
use super::super::packing::{Packing, RowOrder, Shift};
use super::super::tensor::SourceTensor;
use super::element_type::RowFormat;
use super::family::{Family, HeadRows, Heads, NormWeights, Part, Placed, is_setting};
use super::metadata::Metadata;
use super::mistake::GgufMistake;
use super::tensors::{Described, Tensors};

/// A tensor of a checked file. Invariants: `bytes` is inside the file and as long as shape and format require;
/// reordered rows are whole heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GgufEntry {
    packing: Packing,
    shape: Vec<usize>,
    /// Position in the file.
    pub(crate) bytes: Range<usize>,
}

impl GgufEntry {
    /// The tensor's view, plain if nothing has to be undone.
    pub(crate) fn tensor<'a>(
        &self,
        name: &'a str,
        mapping: &'a Mapping,
    ) -> Result<SourceTensor<'a>, IngestError> {
        let (shape, place) = (self.shape.clone(), (mapping, self.bytes.clone()));
        match self.packing {
            Packing {
                format: RowFormat::Plain(dtype),
                order: RowOrder::AsStored,
                shift: Shift::None,
            } => SourceTensor::mapped(name, dtype, shape, place),
            packing => Ok(SourceTensor::packed(name, packing, shape, place)),
        }
    }
}

/// Returns all tensors except those that belong to the configuration.
pub(super) fn entries(
    metadata: &Metadata<'_>,
    tensors: Tensors,
    family: &'static Family,
) -> Result<BTreeMap<String, GgufEntry>, IngestError> {
    let mut entries = BTreeMap::new();
    for (tensor, described) in tensors.by_name {
        if is_setting(&tensor) {
            continue;
        }
        let placed = family
            .place(&tensor)
            .ok_or_else(|| IngestError::GgufContent {
                path: metadata.path().to_owned(),
                mistake: GgufMistake::TensorUnknown {
                    tensor: tensor.clone(),
                    architecture: family.name,
                },
            })?;
        let packing = Packing {
            format: described.format,
            order: order(metadata, family, &placed, &described, &tensor)?,
            shift: match (family.norms, placed.part) {
                (NormWeights::WithOne, Part::Norm) => Shift::One,
                _ => Shift::None,
            },
        };
        let entry = GgufEntry {
            packing,
            shape: described.shape,
            bytes: described.bytes,
        };
        entries.insert(placed.name, entry);
    }
    Ok(entries)
}

/// The order of a tensor's rows.
fn order(
    metadata: &Metadata<'_>,
    family: &Family,
    placed: &Placed,
    described: &Described,
    tensor: &str,
) -> Result<RowOrder, IngestError> {
    let (HeadRows::Neighbours, Some(heads)) = (family.heads, placed.heads) else {
        return Ok(RowOrder::AsStored);
    };
    let count = |name: &str| metadata.u64(&format!("{}.attention.{name}", family.name));
    let query = count("head_count")?.unwrap_or(0);
    let heads = match heads {
        Heads::Query => query,
        Heads::Key => count("head_count_kv")?.unwrap_or(query),
    };
    let rows = described.shape.first().copied().unwrap_or(0);
    let head_rows = usize::try_from(heads)
        .ok()
        .filter(|heads| *heads > 0 && rows.is_multiple_of(*heads))
        .and_then(|heads| rows.checked_div(heads))
        .filter(|head_rows| head_rows.is_multiple_of(2));
    let head_rows = head_rows.ok_or_else(|| IngestError::GgufContent {
        path: metadata.path().to_owned(),
        mistake: GgufMistake::Heads {
            tensor: tensor.to_owned(),
            rows: rows as u64,
            heads,
        },
    })?;
    Ok(RowOrder::Neighbours { head_rows })
}
