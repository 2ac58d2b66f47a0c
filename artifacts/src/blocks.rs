//! Blocks: pieces of a section that are checked one by one.
//!
//! A block is 1 MiB of a section, aligned to the section. blake3 is a tree whose leaves are 1 KiB, so a block is a
//! subtree of it, and the values of a section's blocks add up to its id. A list of values therefore proves itself
//! against a manifest, and any block can then be checked alone, in any order, wherever it came from. A section of at
//! most a block is checked by its id and has no values in the list.

use std::collections::BTreeMap;
use std::ops::Range;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::content_id::SectionId;
use crate::error::{BundlePart, Error};
use crate::manifest::{Manifest, Section};
use crate::reader::Bundle;
use crate::references;

/// Length of a block; the last one of a section may be shorter. A power of two of blake3's chunks, as its tree needs.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// blake3's value of a block within its section, 32 bytes long. Not the hash of the block's bytes.
pub type BlockValue = [u8; SectionId::BYTES];

/// The values of all blocks of a bundle's sections.
///
/// Invariant: the values of each section add up to its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionBlocks {
    /// Per section: its values; empty for a section of at most a block.
    values: Vec<Vec<BlockValue>>,
    /// Per section: its id and length.
    sections: Vec<Section>,
}

impl SectionBlocks {
    /// Hashes the sections of a manifest as they lie in a bundle.
    ///
    /// Errors: [`Error::NoSuchSection`], [`Error::Corrupt`] with the first section whose values do not add up.
    pub fn of(bundle: &Bundle, manifest: &Manifest) -> Result<Self, Error> {
        let values = manifest.sections.iter().map(|section| {
            let values = match block_count(section.bytes) {
                0 => Vec::new(),
                _ => block_values(bundle.section_unverified(section.id)?),
            };
            check_sum(manifest, *section, &values).map(|()| values)
        });
        Ok(Self {
            values: values.collect::<Result<_, Error>>()?,
            sections: manifest.sections.clone(),
        })
    }

    /// Reads a list of values that came from somewhere, and checks that they add up to the ids of the manifest.
    ///
    /// Errors: [`Error::BlockList`] for a list of another length, [`Error::Corrupt`] with the first section whose values
    /// do not add up.
    pub fn read(manifest: &Manifest, list: &[u8]) -> Result<Self, Error> {
        let (expected, found) = (list_bytes(manifest), list.len() as u64);
        if expected != found {
            return Err(Error::BlockList { expected, found });
        }
        let (mut all, _) = list.as_chunks::<{ SectionId::BYTES }>();
        let mut values = Vec::with_capacity(manifest.sections.len());
        for section in &manifest.sections {
            let count = usize::try_from(block_count(section.bytes)).unwrap_or(usize::MAX);
            let (own, rest) = all.split_at_checked(count).unwrap_or((all, &[]));
            check_sum(manifest, *section, own)?;
            values.push(own.to_vec());
            all = rest;
        }
        let sections = manifest.sections.clone();
        Ok(Self { values, sections })
    }

    /// Reads the values of some sections, by their index in the manifest, and checks that they add up. A section without
    /// values is checked as a whole.
    ///
    /// Errors: [`Error::BlockList`] for values of another length, [`Error::Corrupt`] with the first section whose values
    /// do not add up.
    pub fn read_some(manifest: &Manifest, lists: &BTreeMap<usize, Vec<u8>>) -> Result<Self, Error> {
        let sections = manifest.sections.iter().enumerate();
        let values = sections.map(|(index, section)| {
            let Some(list) = lists.get(&index) else {
                return Ok(Vec::new());
            };
            let expected = block_count(section.bytes).saturating_mul(SectionId::BYTES as u64);
            let found = list.len() as u64;
            if expected != found {
                return Err(Error::BlockList { expected, found });
            }
            let (values, _) = list.as_chunks::<{ SectionId::BYTES }>();
            check_sum(manifest, *section, values).map(|()| values.to_vec())
        });
        Ok(Self {
            values: values.collect::<Result<_, Error>>()?,
            sections: manifest.sections.clone(),
        })
    }

    /// The list: all values, one after the other, in the order of the manifest's sections.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.values.iter().flatten().flatten().copied().collect()
    }

    /// Whether `bytes` are the block at `position` of the section at `index`. A section of at most a block has one, at
    /// position 0. What does not exist is never right.
    pub fn is_right(&self, index: usize, position: u64, bytes: &[u8]) -> bool {
        let (Some(section), Some(values)) = (self.sections.get(index), self.values.get(index))
        else {
            return false;
        };
        if values.is_empty() {
            let is_whole = position == 0 && bytes.len() as u64 == section.bytes;
            return is_whole && SectionId::of(bytes) == section.id;
        }
        let value = usize::try_from(position).ok().and_then(|at| values.get(at));
        let Some(offset) = position.checked_mul(BLOCK_BYTES) else {
            return false;
        };
        let length = section.bytes.saturating_sub(offset).min(BLOCK_BYTES);
        bytes.len() as u64 == length && value == Some(&block_value(offset, bytes))
    }
}

/// Length of the list of a manifest's values, in bytes.
pub fn list_bytes(manifest: &Manifest) -> u64 {
    let blocks = manifest
        .sections
        .iter()
        .map(|section| block_count(section.bytes));
    let blocks = blocks.fold(0_u64, u64::saturating_add);
    blocks.saturating_mul(SectionId::BYTES as u64)
}

/// Places of the sections' values in the list, in bytes; empty for a section of at most a block.
pub fn list_ranges(manifest: &Manifest) -> Vec<Range<u64>> {
    let mut end = 0_u64;
    let ranges = manifest.sections.iter().map(|section| {
        let start = end;
        let bytes = block_count(section.bytes).saturating_mul(SectionId::BYTES as u64);
        end = end.saturating_add(bytes);
        start..end
    });
    ranges.collect()
}

/// Number of values that a section has in the list.
fn block_count(bytes: u64) -> u64 {
    match bytes > BLOCK_BYTES {
        true => bytes.div_ceil(BLOCK_BYTES),
        false => 0,
    }
}

/// The values of a section of more than a block.
fn block_values(section: &[u8]) -> Vec<BlockValue> {
    let blocks = section.chunks(BLOCK_BYTES as usize).zip(0_u64..);
    blocks
        .map(|(block, position)| block_value(position.saturating_mul(BLOCK_BYTES), block))
        .collect()
}

/// The value of a block that begins at `offset` of its section. An empty one has none: zeros, which prove nothing.
fn block_value(offset: u64, block: &[u8]) -> BlockValue {
    if block.is_empty() {
        return [0; SectionId::BYTES];
    }
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(block).finalize_non_root()
}

fn check_sum(manifest: &Manifest, section: Section, values: &[BlockValue]) -> Result<(), Error> {
    let Some(found) = sum(values) else {
        return Ok(());
    };
    if found == section.id {
        return Ok(());
    }
    let label = references::label(manifest, section.id);
    Err(Error::Corrupt {
        part: BundlePart::Section {
            id: section.id,
            label,
        },
        expected: section.id,
        found,
    })
}

/// The id that the values of a section add up to; `None` for fewer than two, which say nothing about an id.
fn sum(values: &[BlockValue]) -> Option<SectionId> {
    if values.len() < 2 {
        return None;
    }
    let (left, right) = values.split_at_checked(left_of(values.len()))?;
    let root = merge_subtrees_root(&subtree(left)?, &subtree(right)?, Mode::Hash);
    Some(SectionId::from(root))
}

/// The value of the subtree over some neighbouring blocks. As deep as a logarithm of their number.
fn subtree(values: &[BlockValue]) -> Option<BlockValue> {
    if let [value] = values {
        return Some(*value);
    }
    let (left, right) = values.split_at_checked(left_of(values.len()))?;
    if left.is_empty() || right.is_empty() {
        return None;
    }
    let merged = merge_subtrees_non_root(&subtree(left)?, &subtree(right)?, Mode::Hash);
    Some(merged)
}

/// Number of blocks in the left half of a tree: the largest power of two below their number.
fn left_of(count: usize) -> usize {
    count.div_ceil(2).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        let mut output = blake3::Hasher::new().update(b"blocks").finalize_xof();
        output.fill(&mut noise);
        noise
    }

    #[test]
    fn the_left_half_is_the_largest_power_of_two_below() {
        let halves = [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8), (1000, 512)];
        for (count, left) in halves {
            assert_eq!(left_of(count), left, "{count}");
        }
    }

    #[test]
    fn nothing_adds_up_to_nothing() {
        assert_eq!((sum(&[]), sum(&[[1; 32]])), (None, None));
        assert_eq!((block_count(0), block_count(BLOCK_BYTES)), (0, 0));
        assert_eq!(block_count(BLOCK_BYTES + 1), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Lengths about the edges of blocks, of blake3's chunks of 1 KiB and its blocks of 64 bytes.
        #[test]
        fn values_add_up_to_the_id(blocks in 1_usize..9, chunks in 0_usize..3, beside in -65_i64..66) {
            let bytes = (blocks << 20) as i64 + ((chunks << 10) as i64) + beside;
            let section = noise(bytes as usize);
            prop_assume!(block_count(section.len() as u64) > 0);
            let values = block_values(&section);
            prop_assert_eq!(values.len() as u64, block_count(section.len() as u64));
            prop_assert_eq!(sum(&values), Some(SectionId::of(&section)));
        }

        #[test]
        fn another_value_adds_up_to_something_else(blocks in 2_usize..9, which in 0_usize..9, bit in 0_usize..256) {
            let section = noise((blocks << 20) - 1);
            let mut values = block_values(&section);
            let which = which % values.len();
            values[which][bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(sum(&values), Some(SectionId::of(&section)));
        }
    }
}
