//! A look at the first results of a request: some are held against sums of the CPU's own, so that a device that computes
//! wrongly is found out before a product has anything from it. Known answers of kernels have few rows, for which a partition
//! may give the device nothing.

use half::{bf16, f16};
use heg_artifacts::SectionId;
use heg_artifacts::manifest::{ElementType, Weight};

/// Outputs that are computed again.
const LOOKS: usize = 4;

/// Largest distance of a result from its sum, as a share of the sizes of its terms. Chosen: twenty times what rounding each
/// term and the sum to f16 comes to.
const TOLERANCE: f64 = 0.01;

/// Bytes of a section; `None` if there is none.
pub(super) type BytesOf<'b> = dyn Fn(SectionId) -> Option<&'b [u8]> + 'b;

/// Whether results of one token are those of rows of a weight from `first_row` on, judged by a few of them. A weight that
/// cannot be read is no reason to doubt.
pub(super) fn agrees(
    bytes_of: &BytesOf<'_>,
    weight: &Weight,
    first_row: usize,
    x: &[f32],
    y: &[f32],
) -> bool {
    (0..LOOKS.min(y.len())).all(|look| {
        let output = look * y.len() / LOOKS.min(y.len());
        let found = y.get(output).copied().unwrap_or_default();
        let row = row_of(bytes_of, weight, first_row + output);
        row.is_none_or(|row| {
            let terms = row.iter().zip(x);
            let terms = terms.map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| {
                (sum + term, size + term.abs())
            });
            (f64::from(found) - sum).abs() <= TOLERANCE * size
        })
    })
}

/// The numbers of a row; `None` if the bundle does not have it.
fn row_of(bytes_of: &BytesOf<'_>, weight: &Weight, row: usize) -> Option<Vec<f32>> {
    let [_, columns] = weight.shape[..] else {
        return None;
    };
    let columns = columns as usize;
    let row_bytes = weight.element.bytes_of(columns as u64)? as usize;
    let values = bytes_of(weight.values)?;
    let values = values.get(row * row_bytes..(row + 1) * row_bytes)?;
    let group = weight.group_columns.map(|group| group.count() as usize);
    let numbers = group.map_or(1, |group| columns / group);
    let affine = |id| -> Option<Vec<f32>> {
        let element = match group {
            Some(_) => ElementType::F16,
            None => ElementType::F32,
        };
        let size = numbers * element.bytes() as usize;
        let of_row = bytes_of(id)?.get(row * size..(row + 1) * size)?;
        Some(floats(element, of_row))
    };
    let quantised = match weight.element {
        ElementType::F16 | ElementType::Bf16 | ElementType::F32 => {
            return Some(floats(weight.element, values));
        }
        ElementType::I8 => values.iter().map(|q| f32::from(*q as i8)).collect(),
        ElementType::I4 | ElementType::U4 => nibbles(weight.element, values),
        ElementType::I64 => return None,
    };
    let scales = affine(weight.scales?)?;
    let centres = weight.centres.map(affine);
    let centres = match centres {
        Some(centres) => centres?,
        None => vec![0.0; numbers],
    };
    let quantised: Vec<f32> = quantised;
    let width = group.unwrap_or(columns).max(1);
    let of_groups = quantised.chunks(width).zip(scales.iter().zip(&centres));
    let real = of_groups
        .flat_map(|(group, (scale, centre))| group.iter().map(move |q| scale * q + centre));
    Some(real.collect())
}

/// Integers of a row, two in a byte.
fn nibbles(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    let number = |half: u8| match element {
        ElementType::I4 => f32::from(half) - 16.0 * f32::from(half >> 3),
        _ => f32::from(half),
    };
    halves.map(number).collect()
}

fn floats(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks().0.iter();
    match element {
        ElementType::F16 => halves()
            .map(|half| f16::from_le_bytes(*half).to_f32())
            .collect(),
        ElementType::Bf16 => halves()
            .map(|half| bf16::from_le_bytes(*half).to_f32())
            .collect(),
        _ => {
            let words = bytes.as_chunks().0.iter();
            words.map(|word| f32::from_le_bytes(*word)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use heg_spec::GroupColumns;

    use super::*;

    const SCALES: &[u8] = b"scales";
    const CENTRES: &[u8] = b"centres";

    fn weight(element: ElementType) -> Weight {
        let id = |name| SectionId::of(name);
        Weight {
            name: "w".to_owned(),
            element,
            shape: vec![3, 64],
            values: id(b"values".as_slice()),
            group_columns: element.is_grouped().then_some(GroupColumns::SMALLEST),
            scales: (element != ElementType::F16).then(|| id(SCALES)),
            centres: (element == ElementType::U4).then(|| id(CENTRES)),
            source: id(b"source".as_slice()),
        }
    }

    /// The second row of a matrix whose integers go up from -8 or 0, or whose floats are their eighths.
    fn expected(element: ElementType, column: usize) -> f32 {
        let up = (column % 16) as f32;
        let group = (column / 32) as f32;
        match element {
            ElementType::U4 => (2.0 + group) * up - (6.0 + group),
            ElementType::I4 => (2.0 + group) * if up < 8.0 { up } else { up - 16.0 },
            ElementType::I8 => 0.5 * (up - 8.0),
            _ => up / 8.0,
        }
    }

    fn sections(element: ElementType) -> [Vec<u8>; 3] {
        let halves = |numbers: [f32; 6]| -> Vec<u8> {
            let numbers = numbers.into_iter();
            numbers
                .flat_map(|x| f16::from_f32(x).to_le_bytes())
                .collect()
        };
        let columns = 0..3 * 64;
        match element {
            ElementType::F16 => {
                let numbers = columns.map(|it| f16::from_f32((it % 16) as f32 / 8.0));
                let values = numbers.flat_map(|half| half.to_le_bytes()).collect();
                [values, Vec::new(), Vec::new()]
            }
            ElementType::I8 => {
                let values = columns.map(|it| ((it % 16) as i8 - 8) as u8).collect();
                let scales = [9.0_f32, 0.5, 9.0].into_iter();
                let scales = scales.flat_map(|x| x.to_le_bytes()).collect();
                [values, scales, Vec::new()]
            }
            _ => {
                let pairs = (0..3 * 32).map(|it| (2 * it % 16 + 16 * ((2 * it + 1) % 16)) as u8);
                let scales = halves([9.0, 9.0, 2.0, 3.0, 9.0, 9.0]);
                let centres = halves([9.0, 9.0, -6.0, -7.0, 9.0, 9.0]);
                [pairs.collect(), scales, centres]
            }
        }
    }

    #[test]
    fn results_of_each_form_are_told_from_others() {
        let forms = [
            ElementType::F16,
            ElementType::I8,
            ElementType::I4,
            ElementType::U4,
        ];
        for element in forms {
            let (weight, sections) = (weight(element), sections(element));
            let bytes_of = |id| {
                let ids = [Some(weight.values), weight.scales, weight.centres];
                let place = ids.into_iter().position(|it| it == Some(id))?;
                sections.get(place).map(Vec::as_slice)
            };
            let row: Vec<f32> = (0..64).map(|column| expected(element, column)).collect();
            assert_eq!(row_of(&bytes_of, &weight, 1), Some(row.clone()));
            let x: Vec<f32> = (0..64).map(|column| (column % 7) as f32 - 2.0).collect();
            let y: f32 = row.iter().zip(&x).map(|(w, x)| w * x).sum();
            assert!(agrees(&bytes_of, &weight, 1, &x, &[y]), "{element:?}");
            assert!(!agrees(&bytes_of, &weight, 1, &x, &[-y]), "{element:?}");
            assert!(
                !agrees(&bytes_of, &weight, 0, &x, &[2.0 * y]),
                "{element:?}"
            );
            // There is no fourth row.
            assert!(agrees(&bytes_of, &weight, 3, &x, &[-y]), "{element:?}");
        }
    }
}
