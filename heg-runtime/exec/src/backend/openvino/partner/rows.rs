//! Rows between a program and a piece: padded and in the piece's element type on the way there, checked and in f32 on the
//! way back.

use half::f16;
use half::slice::HalfFloatSliceExt;
use heg_artifacts::manifest::ElementType;

/// The bytes of rows in a piece's element type. Rows up to `size` follow as zeros.
pub(super) fn to_piece(element: ElementType, x: &[f32], width: usize, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size * width * element.bytes() as usize];
    match element {
        ElementType::F16 => {
            let mut halves = vec![f16::ZERO; x.len()];
            halves.convert_from_f32_slice(x);
            for (to, half) in bytes.as_chunks_mut().0.iter_mut().zip(halves) {
                *to = half.to_le_bytes();
            }
        }
        _ => {
            for (to, x) in bytes.as_chunks_mut().0.iter_mut().zip(x) {
                *to = x.to_le_bytes();
            }
        }
    }
    bytes
}

/// The numbers of a piece's rows.
pub(super) fn from_piece(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    match element {
        ElementType::F16 => {
            let (halves, _) = bytes.as_chunks();
            let halves = halves.iter().map(|half| f16::from_le_bytes(*half));
            halves.collect::<Vec<_>>().to_f32_vec()
        }
        _ => {
            let (words, _) = bytes.as_chunks();
            let words = words.iter().map(|word| f32::from_le_bytes(*word));
            words.collect()
        }
    }
}

/// The byte that marks results before a run: two or four of them are no number in any type.
pub(super) const NO_NUMBER: u8 = 0xFF;

/// Why results cannot be those of a run: something in them is no number, or all are zeros, though not all of `x` are.
pub(super) fn fault_of(x: &[f32], y: &[f32]) -> Option<&'static str> {
    if y.iter().any(|y| !y.is_finite()) {
        return Some("no numbers");
    }
    let all_zeros = |values: &[f32]| values.iter().all(|value| *value == 0.0);
    (all_zeros(y) && !all_zeros(x)).then_some("zeros")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_with_zeros_and_come_back_as_they_were() {
        let x = [1.0, -2.5, 0.25, 65504.0];
        for element in [ElementType::F16, ElementType::F32] {
            let bytes = to_piece(element, &x, 2, 3);
            assert_eq!(bytes.len(), 6 * element.bytes() as usize);
            let back = from_piece(element, &bytes);
            assert_eq!(back, [1.0, -2.5, 0.25, 65504.0, 0.0, 0.0]);
        }
    }

    #[test]
    fn what_no_run_wrote_is_found_out() {
        for element in [ElementType::F16, ElementType::F32] {
            let marked = from_piece(element, &[NO_NUMBER; 8]);
            assert_eq!(fault_of(&[1.0], &marked), Some("no numbers"));
        }
        // Beyond f16.
        let far = from_piece(ElementType::F16, &to_piece(ElementType::F16, &[1e6], 1, 1));
        assert_eq!(fault_of(&[1.0], &far), Some("no numbers"));
        assert_eq!(fault_of(&[1.0, 0.0], &[0.0, -0.0]), Some("zeros"));
        assert_eq!(fault_of(&[0.0], &[0.0]), None);
        assert_eq!(fault_of(&[1.0], &[0.0, 1e-7]), None);
    }
}
