//! A weight in the store, and the same mapped, for known answers.
//!
//! Bytes are hashed in the pass that uses them: an answer from damaged weights would be remembered, and outlive the
//! damage.

use heg_artifacts::manifest::ElementType;
use heg_artifacts::{Error, Mapping, Section, SectionId, Store, check_object};

use super::element::{Element, F16};

/// A weight in the store.
#[derive(Debug, Clone)]
pub struct StoredWeight {
    /// Type of the stored values.
    pub element: ElementType,
    /// Values, row-major.
    pub values: Section,
    /// Scales and centres of integers.
    pub affine: Option<StoredAffine>,
    /// Hash of the source's numbers.
    pub source: SectionId,
}

/// The values of a weight's integers: `scale · q + centre`, or `scale · q`. One f32 per row of 8-bit integers, one f16
/// per group of 4-bit ones.
#[derive(Debug, Clone, Copy)]
pub struct StoredAffine {
    /// Scales.
    pub scales: Section,
    /// Centres, if any.
    pub centres: Option<Section>,
}

/// A mapped weight that has not been read yet.
#[derive(Debug)]
pub struct MappedWeight {
    pub(super) element: ElementType,
    pub(super) values: Bytes,
    /// Scales and centres of integers.
    pub(super) affine: Option<Affine>,
}

/// A mapped [`StoredAffine`].
#[derive(Debug)]
pub(super) struct Affine {
    pub(super) scales: Bytes,
    pub(super) centres: Option<Bytes>,
}

/// Mapped bytes with their expected hash.
#[derive(Debug)]
pub struct Bytes {
    pub(super) mapping: Mapping,
    id: SectionId,
    name: String,
}

impl MappedWeight {
    /// Maps a weight; `name` is for messages.
    pub fn open(store: &Store, name: String, stored: &StoredWeight) -> Result<Self, Error> {
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
    pub fn of_bytes(
        element: ElementType,
        values: &[u8],
        affine: Option<(&[u8], Option<&[u8]>)>,
    ) -> Result<Self, Error> {
        let copy = |bytes: &[u8]| {
            Ok::<_, Error>(Bytes {
                mapping: Mapping::of_bytes(bytes)?,
                id: SectionId::of(bytes),
                name: "in memory".to_owned(),
            })
        };
        Ok(Self {
            element,
            values: copy(values)?,
            affine: match affine {
                Some((scales, centres)) => Some(Affine {
                    scales: copy(scales)?,
                    centres: centres.map(copy).transpose()?,
                }),
                None => None,
            },
        })
    }

    /// The values of a weight in f32.
    pub fn values(&self) -> &Bytes {
        &self.values
    }
}

impl Bytes {
    /// All elements as f32: a norm's weight, a bias, scales, centres.
    ///
    /// Errors: [`Error::Corrupt`] if the bytes do not match their name.
    pub fn floats(&self) -> Result<Vec<f32>, Error> {
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
