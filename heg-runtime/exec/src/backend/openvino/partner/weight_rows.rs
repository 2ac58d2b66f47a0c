//! Rows of a weight as the tensors that a piece takes: ranges of the sections where they lie.

use std::ops::Range;

use heg_artifacts::SectionId;
use heg_artifacts::manifest::Weight;
use heg_openvino::TensorType;

use crate::mem::tensor_element;

/// A range of a section as a tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RowsTensor {
    pub(super) section: SectionId,
    pub(super) first_byte: usize,
    pub(super) element: TensorType,
    pub(super) shape: Vec<usize>,
}

/// Values, scales and centres of some rows, in the order of a piece's ports. Empty if the weight is no matrix.
pub(super) fn weight_rows(weight: &Weight, rows: Range<usize>) -> Vec<RowsTensor> {
    let [_, columns] = weight.shape[..] else {
        return Vec::new();
    };
    let columns = columns as usize;
    let count = rows.len();
    let bytes = |elements: usize| {
        let bytes = weight.element.bytes_of(elements as u64);
        usize::try_from(bytes.unwrap_or(u64::MAX)).unwrap_or(usize::MAX)
    };
    let group = weight.group_columns.map(|group| group.count() as usize);
    let values = RowsTensor {
        section: weight.values,
        first_byte: bytes(rows.start * columns),
        element: tensor_element(weight.element),
        shape: match group {
            None => vec![count, columns],
            Some(group) => vec![count, columns / group, group],
        },
    };
    // Scales of groups have a dimension for the group's columns, centres do not.
    let (numbers, element, of_scales, of_centres) = match group {
        None => (1, TensorType::F32, vec![1, count], vec![1, count]),
        Some(group) => {
            let groups = columns / group;
            let shape = vec![count, groups];
            (groups, TensorType::F16, vec![count, groups, 1], shape)
        }
    };
    let affine = |section: Option<SectionId>, shape: Vec<usize>| {
        section.map(|section| RowsTensor {
            section,
            first_byte: rows.start * numbers * element.bytes(),
            element,
            shape,
        })
    };
    let scales = affine(weight.scales, of_scales);
    let centres = affine(weight.centres, of_centres);
    std::iter::once(values)
        .chain(scales)
        .chain(centres)
        .collect()
}

#[cfg(test)]
mod tests {
    use heg_artifacts::manifest::ElementType;
    use heg_spec::GroupColumns;

    use super::*;

    fn weight(element: ElementType, group_columns: Option<GroupColumns>) -> Weight {
        let section = |name: &str| SectionId::of(name.as_bytes());
        let is_integer = element != ElementType::F16;
        Weight {
            name: "w".to_owned(),
            element,
            shape: vec![96, 64],
            values: section("values"),
            group_columns,
            scales: is_integer.then(|| section("scales")),
            centres: (element == ElementType::U4).then(|| section("centres")),
            source: section("source"),
        }
    }

    fn places(weight: &Weight) -> Vec<(usize, Vec<usize>)> {
        let tensors = weight_rows(weight, 24..40).into_iter();
        tensors
            .map(|tensor| (tensor.first_byte, tensor.shape))
            .collect()
    }

    #[test]
    fn rows_are_ranges_of_values_and_of_what_belongs_to_them() {
        let halves = weight(ElementType::F16, None);
        assert_eq!(places(&halves), [(24 * 128, vec![16, 64])]);
        let bytes = weight(ElementType::I8, None);
        let expected = [(24 * 64, vec![16, 64]), (24 * 4, vec![1, 16])];
        assert_eq!(places(&bytes), expected);
        let nibbles = weight(ElementType::U4, Some(GroupColumns::SMALLEST));
        let expected = [
            (24 * 32, vec![16, 2, 32]),
            (24 * 4, vec![16, 2, 1]),
            (24 * 4, vec![16, 2]),
        ];
        assert_eq!(places(&nibbles), expected);
        let vector = Weight {
            shape: vec![64],
            ..halves
        };
        assert!(weight_rows(&vector, 0..8).is_empty());
    }
}
