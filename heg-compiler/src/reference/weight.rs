//! A weight in the store, for the evaluator.
//!
//! Bytes are hashed in the pass that uses them: an answer from damaged weights would be remembered, and outlive the
//! damage.

use heg_artifacts::manifest::ElementType;
use heg_artifacts::{Error, Mapping, SectionId, Store, check_object};

use crate::encode::StoredWeight;
use crate::quant::{Element, F16};

/// A mapped weight that has not been read yet.
pub(crate) struct Weight {
    pub(super) element: ElementType,
    pub(super) values: Bytes,
    /// Scales and centres of integers.
    pub(super) affine: Option<Affine>,
}

/// Scales and centres of integers, with the value `scale · q + centre`, or `scale · q`. One f32 per row of 8-bit
/// integers, one f16 per group of 4-bit ones.
pub(super) struct Affine {
    pub(super) scales: Bytes,
    pub(super) centres: Option<Bytes>,
}

/// Mapped bytes with their expected hash.
pub(super) struct Bytes {
    pub(super) mapping: Mapping,
    id: SectionId,
    name: String,
}

impl Weight {
    /// Maps a weight; `name` is for messages.
    pub(super) fn open(store: &Store, name: String, stored: &StoredWeight) -> Result<Self, Error> {
        let open = |id| {
            let mapping = store.map_unverified(id)?;
            let name = name.clone();
            Ok::<_, Error>(Bytes { mapping, id, name })
        };
        Ok(Self {
            element: stored.element,
            values: open(stored.values.id)?,
            affine: match stored.affine {
                Some(affine) => Some(Affine {
                    scales: open(affine.scales.id)?,
                    centres: affine.centres.map(|centres| open(centres.id)).transpose()?,
                }),
                None => None,
            },
        })
    }

    /// Makes a weight from memory: values, then scales and centres.
    #[cfg(test)]
    pub(crate) fn of_bytes(
        element: ElementType,
        values: &[u8],
        affine: Option<(&[u8], Option<&[u8]>)>,
    ) -> Self {
        let copy = |bytes: &[u8]| Bytes {
            mapping: Mapping::of_bytes(bytes).unwrap(),
            id: SectionId::of(bytes),
            name: "of a test".to_owned(),
        };
        Self {
            element,
            values: copy(values),
            affine: affine.map(|(scales, centres)| Affine {
                scales: copy(scales),
                centres: centres.map(copy),
            }),
        }
    }
}

impl Bytes {
    /// All elements as f32: a norm's weight, a bias, scales, centres.
    pub(super) fn floats(&self) -> Result<Vec<f32>, Error> {
        self.check(SectionId::of(&self.mapping))?;
        let (numbers, _) = self.mapping.as_chunks();
        Ok(numbers.iter().map(|n| f32::from_le_bytes(*n)).collect())
    }

    /// All elements, stored as f16: scales and centres of groups.
    pub(super) fn halves(&self) -> Result<Vec<f32>, Error> {
        self.check(SectionId::of(&self.mapping))?;
        let (numbers, _) = self.mapping.as_chunks();
        Ok(numbers.iter().map(|n| F16::to_f32(*n)).collect())
    }

    /// Compares the hash of the bytes read with the section's name.
    pub(super) fn check(&self, found: SectionId) -> Result<(), Error> {
        check_object(self.id, found, || format!("weight `{}`", self.name))
    }
}
