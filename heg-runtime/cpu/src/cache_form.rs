//! Forms of the rows of a KV cache.

use half::bf16;
use heg_artifacts::manifest::ElementType;

use crate::error::CpuError;
use crate::lanes::{Kernel, portable::Portable};
use crate::rows::{CACHE_GROUP, RoundHeads, head_bytes};

/// Form of the rows of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheForm {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// Heads of 8-bit integers from −127 to 127, each with the scales of its groups behind it, in bf16.
    I8 {
        /// Elements of a head, at least one.
        head_dim: usize,
    },
}

impl CacheForm {
    /// The form of keys and values of an element type, in heads of `head_dim`.
    ///
    /// # Errors
    ///
    /// [`CpuError::Program`] for an element type that no kernel reads.
    pub fn new(element: ElementType, head_dim: u32) -> Result<Self, CpuError> {
        match element {
            ElementType::F32 => Ok(Self::F32),
            ElementType::Bf16 => Ok(Self::Bf16),
            ElementType::I8 if head_dim > 0 => Ok(Self::I8 {
                head_dim: head_dim as usize,
            }),
            _ => Err(CpuError::Program {
                what: format!("keys and values in heads of {head_dim}"),
                expected: "f32, bf16, or i8 in heads that are not empty",
                found: format!("{element:?}"),
            }),
        }
    }

    /// Bytes of a row of `width` elements.
    pub const fn row_bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => width.saturating_mul(size_of::<f32>()),
            Self::Bf16 => width.saturating_mul(size_of::<u16>()),
            Self::I8 { head_dim } => (width / head_dim).saturating_mul(head_bytes(head_dim)),
        }
    }

    /// Whether rows of `width` elements are whole heads.
    pub(crate) const fn divides(self, width: usize) -> bool {
        match self {
            Self::F32 | Self::Bf16 => true,
            Self::I8 { head_dim } => width.is_multiple_of(head_dim),
        }
    }

    /// Returns whole rows with these elements, rounded as kernels round them.
    pub fn rows_of(self, elements: &[f32]) -> Vec<u8> {
        let bf16 = |x: &f32| bf16::from_f32(*x).to_le_bytes();
        match self {
            Self::F32 => elements.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::Bf16 => elements.iter().flat_map(bf16).collect(),
            Self::I8 { head_dim } => {
                let heads = elements.len() / head_dim;
                let mut rows = vec![0; heads * head_bytes(head_dim)];
                let rounded = RoundHeads {
                    x: elements.as_ptr(),
                    heads,
                    head_dim,
                    out: rows.as_mut_ptr(),
                };
                // SAFETY: every machine has the portable form, and both have all heads.
                unsafe { rounded.run::<Portable>() };
                rows
            }
        }
    }

    /// Returns the elements of whole rows.
    pub fn elements_of(self, rows: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => numbers(rows, f32::from_le_bytes),
            Self::Bf16 => numbers(rows, |half| bf16::from_le_bytes(half).to_f32()),
            Self::I8 { head_dim } => {
                let heads = rows.chunks_exact(head_bytes(head_dim));
                let elements = heads.flat_map(|head| {
                    let (integers, scales) = head.split_at(head_dim);
                    let scales = numbers(scales, |scale| bf16::from_ne_bytes(scale).to_f32());
                    let groups = integers.chunks(CACHE_GROUP).zip(scales);
                    groups.flat_map(|(group, scale)| {
                        let integers = group.iter().map(|q| f32::from(q.cast_signed()));
                        integers.map(move |q| q * scale)
                    })
                });
                elements.collect()
            }
        }
    }
}

fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (each, _) = bytes.as_chunks();
    each.iter().map(|bytes| number(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::STEPS;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn groups_are_rounded_by_half_a_step(
            head_dim in 1..140usize,
            heads in 1..5usize,
            elements in prop::collection::vec(-1e6f32..1e6, 140 * 5),
        ) {
            let elements = &elements[..heads * head_dim];
            let form = CacheForm::I8 { head_dim };
            let rows = form.rows_of(elements);
            prop_assert_eq!(rows.len(), form.row_bytes(elements.len()));
            let found = form.elements_of(&rows);
            prop_assert_eq!(found.len(), elements.len());
            for (found, head) in found.chunks(head_dim).zip(elements.chunks(head_dim)) {
                for (found, group) in found.chunks(CACHE_GROUP).zip(head.chunks(CACHE_GROUP)) {
                    let largest = group.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                    for (found, x) in found.iter().zip(group) {
                        // A scale in bf16 is at most a 128th larger.
                        prop_assert!((found - x).abs() <= largest / STEPS * 0.504);
                    }
                }
            }
        }
    }

    #[test]
    fn heads_of_zeros_and_of_what_is_no_number_stay_so() {
        let form = CacheForm::I8 { head_dim: 2 };
        let found = form.elements_of(&form.rows_of(&[0.0, -0.0, 1e-45, 0.0, 1.0, f32::NAN]));
        assert_eq!(found[..4], [0.0; 4]);
        assert!(found[4].is_nan() && found[5].is_nan());
    }

    #[test]
    fn integers_of_four_bits_are_refused() {
        let refused = CacheForm::new(ElementType::I4, 64).unwrap_err().to_string();
        let expected = "keys and values in heads of 64: expected f32, bf16, or i8 in heads that are not empty, found I4";
        assert_eq!(refused, expected);
        assert!(CacheForm::new(ElementType::I8, 0).is_err());
    }
}
