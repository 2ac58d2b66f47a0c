//! Elements of ports to f32 and back.

use half::{bf16, f16};
use heg_artifacts::manifest::ElementType;

/// Reads elements as f32, into all of `values`; elements that are missing, or of an integer type, are zero.
pub(super) fn read(element: ElementType, bytes: &[u8], values: &mut [f32]) {
    values.fill(0.0);
    match element {
        ElementType::F16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*bytes).to_f32();
            }
        }
        ElementType::Bf16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        ElementType::F32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        ElementType::I4 | ElementType::U4 | ElementType::I8 | ElementType::I64 => {}
    }
}

/// The bytes of elements, rounded to the nearest.
pub(super) fn write(element: ElementType, values: &[f32]) -> Vec<u8> {
    let each = values.iter();
    match element {
        ElementType::F16 => each.flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        ElementType::Bf16 => each
            .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
            .collect(),
        ElementType::F32 => each.flat_map(|x| x.to_le_bytes()).collect(),
        ElementType::I4 | ElementType::U4 | ElementType::I8 | ElementType::I64 => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were_where_their_type_has_them() {
        let numbers = [0.0, 1.5, -2.0, 65504.0];
        for element in [ElementType::F16, ElementType::F32] {
            let mut found = [7.0; 5];
            read(element, &write(element, &numbers), &mut found);
            assert_eq!(found, [0.0, 1.5, -2.0, 65504.0, 0.0]);
        }
        assert_eq!(write(ElementType::F16, &[1e9]), f16::INFINITY.to_le_bytes());
    }
}
