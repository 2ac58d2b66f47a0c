//! The pieces that have to be fetched: those that nothing on this machine has.
//!
//! In this order a piece comes from a part of the store, from a partial file that an earlier transfer left, from an equal
//! section of any bundle here, from an equal block of the same tensor in another bundle; and only then from the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;

use heg_artifacts::{BLOCK_BYTES, SectionBlocks, SectionId};

use crate::error::ShipError;
use crate::offer::{Offer, labels, part_bytes};
use crate::partial::{Partial, Piece, pieces, read_piece};
use crate::platform;
use crate::store::DeviceStore;

/// The work that a transfer has to do.
pub(crate) struct Plan {
    /// Files of the parts that are not here.
    pub(crate) partials: Vec<Partial>,
    /// Per partial file: the pieces to fetch, in order.
    pub(crate) missing: Vec<Vec<Piece>>,
    /// The values to check pieces by.
    pub(crate) blocks: SectionBlocks,
    /// Amounts.
    pub(crate) amounts: Amounts,
}

/// The amounts of a plan, in bytes without padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// The whole bundle.
    pub bundle_bytes: u64,
    /// Bytes that are here already, in parts or partial files or as copies.
    pub here_bytes: u64,
    /// Bytes to fetch.
    pub fetch_bytes: u64,
}

/// A section of a bundle of the store.
#[derive(Clone)]
struct Local {
    path: PathBuf,
    offset: u64,
    bytes: u64,
}

/// The sections of the store, by their content and by their use.
#[derive(Default)]
pub(crate) struct LocalSections {
    by_id: BTreeMap<SectionId, Local>,
    by_label: BTreeMap<String, Vec<Local>>,
}

impl LocalSections {
    /// Lists the sections of all bundles of a store.
    pub(crate) fn of(store: &DeviceStore) -> Result<Self, ShipError> {
        let mut found = Self::default();
        for bundle in store.bundles()? {
            let Some(head) = store.head(bundle) else {
                continue;
            };
            let manifest = head.manifest();
            let labels = labels(manifest);
            for part in head.parts() {
                let path = part.id.path_in(&store.parts());
                for index in part.sections.clone() {
                    let section = manifest.sections.get(index);
                    let Some((section, range)) = section.zip(head.section_range(index)) else {
                        continue;
                    };
                    let local = Local {
                        path: path.clone(),
                        offset: range.start.saturating_sub(part.range.start),
                        bytes: section.bytes,
                    };
                    if let Some(label) = labels.get(&section.id) {
                        let of_label = found.by_label.entry(label.clone()).or_default();
                        of_label.push(local.clone());
                    }
                    found.by_id.insert(section.id, local);
                }
            }
        }
        Ok(found)
    }
}

impl LocalSections {
    /// Whether the store has a section.
    pub(crate) fn has(&self, id: SectionId) -> bool {
        self.by_id.contains_key(&id)
    }
}

impl Plan {
    /// Plans the transfer of an offer, and takes over all that is on this machine.
    ///
    /// Errors: [`ShipError::NoRoom`] before anything is written; those of the store and of the offer.
    pub(crate) fn new(store: &DeviceStore, offer: &Offer<'_>) -> Result<Self, ShipError> {
        let absent: Vec<usize> = (0..offer.parts.len())
            .filter(|index| {
                let part = offer.parts.get(*index);
                part.is_some_and(|part| !store.has_part(part.id, part_bytes(part)))
            })
            .collect();
        let absent_parts = absent.iter().filter_map(|index| offer.parts.get(*index));
        let sections: BTreeSet<usize> = absent_parts
            .flat_map(|part| part.sections.clone())
            .collect();
        let blocks = offer.blocks(&sections)?;
        let proven = |index: &usize| {
            let part = offer.parts.get(*index);
            part.is_some_and(|part| is_proven(store, offer, part, &blocks))
        };
        let absent: Vec<usize> = absent.into_iter().filter(|index| !proven(index)).collect();
        let parts = || {
            let absent = absent.iter();
            absent.filter_map(|index| Some((*index, offer.parts.get(*index)?)))
        };
        check_room(store, parts().map(|(_, part)| part))?;
        let local = match absent.is_empty() {
            true => LocalSections::default(),
            false => LocalSections::of(store)?,
        };
        let labels = offer.labels();
        let mut plan = Self {
            partials: Vec::new(),
            missing: Vec::new(),
            blocks,
            amounts: Amounts::default(),
        };
        for (index, part) in parts() {
            let partial = Partial::open(store, index, part)?;
            let all = pieces(&offer.head, part);
            if partial.was_here {
                partial.clear_padding(&all, part)?;
            }
            let mut missing = plan.not_in_file(&partial, all);
            take_over(offer, &plan.blocks, &local, &labels, &partial, &mut missing)?;
            partial.reserve(&missing, part)?;
            plan.partials.push(partial);
            plan.missing.push(missing);
        }
        let bundle_bytes: u64 = offer
            .manifest()
            .sections
            .iter()
            .map(|section| section.bytes)
            .sum();
        let fetch_bytes = plan.missing.iter().flatten().map(|piece| piece.bytes).sum();
        plan.amounts = Amounts {
            bundle_bytes,
            here_bytes: bundle_bytes.saturating_sub(fetch_bytes),
            fetch_bytes,
        };
        Ok(plan)
    }

    fn not_in_file(&self, partial: &Partial, mut pieces: Vec<Piece>) -> Vec<Piece> {
        if partial.was_here {
            let mut buffer = Vec::new();
            pieces.retain(|piece| !partial.has(piece, &self.blocks, &mut buffer));
        }
        pieces
    }
}

/// Whether the file of a part has all of its bytes, though it is not the file that was noted: a copy of a store has other
/// times. Then it is noted again.
fn is_proven(
    store: &DeviceStore,
    offer: &Offer<'_>,
    part: &heg_artifacts::FilePart,
    blocks: &SectionBlocks,
) -> bool {
    let path = part.id.path_in(&store.parts());
    let Ok(file) = File::open(&path) else {
        return false;
    };
    let length = file.metadata().map_or(0, |data| data.len());
    let mut buffer = Vec::new();
    let mut end = 0;
    let is_right = length == part_bytes(part)
        && !part.sections.is_empty()
        && pieces(&offer.head, part).iter().all(|piece| {
            let gap = piece.offset.saturating_sub(end);
            let is_padded = read_piece(&file, end, gap, &mut buffer) && is_zero(&buffer);
            end = piece.offset.saturating_add(piece.bytes);
            is_padded
                && read_piece(&file, piece.offset, piece.bytes, &mut buffer)
                && blocks.is_right(piece.section, piece.position, &buffer)
        })
        && read_piece(&file, end, length.saturating_sub(end), &mut buffer)
        && is_zero(&buffer);
    is_right && store.note_part(part.id).is_ok()
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Compares the room that parts need with that on the disk.
fn check_room<'p>(
    store: &DeviceStore,
    parts: impl Iterator<Item = &'p heg_artifacts::FilePart>,
) -> Result<(), ShipError> {
    let folder = store.path().join(crate::store::PARTIAL);
    let room = |part: &heg_artifacts::FilePart| {
        let reserved = std::fs::metadata(folder.join(format!("{}.partial", part.id)));
        let reserved = reserved.map_or(0, |data| platform::room_taken(&data));
        part_bytes(part).saturating_sub(reserved)
    };
    let needed: u64 = parts.map(room).fold(0, u64::saturating_add);
    match platform::free_bytes(store.path()) {
        Some(free) if free < needed => Err(ShipError::NoRoom {
            path: store.path().to_owned(),
            free,
            needed,
        }),
        _ => Ok(()),
    }
}

/// Copies what other bundles here have: equal sections, then equal blocks of sections with the same use. All of it is
/// hashed as if it had come from elsewhere.
fn take_over(
    offer: &Offer<'_>,
    blocks: &SectionBlocks,
    local: &LocalSections,
    labels: &BTreeMap<SectionId, String>,
    partial: &Partial,
    missing: &mut Vec<Piece>,
) -> Result<(), ShipError> {
    let sections: BTreeSet<usize> = missing.iter().map(|piece| piece.section).collect();
    let mut buffer = Vec::new();
    for index in sections {
        let Some(section) = offer.manifest().sections.get(index) else {
            continue;
        };
        let of_label = labels
            .get(&section.id)
            .and_then(|label| local.by_label.get(label));
        let equal = local.by_id.get(&section.id);
        if let Some(equal) = equal
            && let Some(first) = missing.iter().find(|piece| piece.section == index)
            && let Ok(from) = File::open(&equal.path)
        {
            let start = first
                .offset
                .saturating_sub(first.position.saturating_mul(BLOCK_BYTES));
            platform::copy_range(&from, equal.offset, &partial.file, start, section.bytes);
            missing
                .retain(|piece| piece.section != index || !partial.has(piece, blocks, &mut buffer));
        }
        for other in equal.into_iter().chain(of_label.into_iter().flatten()) {
            let Ok(from) = File::open(&other.path) else {
                continue;
            };
            let mut failed = Ok(());
            missing.retain(|piece| {
                if piece.section != index || failed.is_err() {
                    return true;
                }
                let offset = piece.position.saturating_mul(BLOCK_BYTES);
                let is_within = offset.saturating_add(piece.bytes) <= other.bytes;
                let place = other.offset.saturating_add(offset);
                let is_equal = is_within
                    && read_piece(&from, place, piece.bytes, &mut buffer)
                    && blocks.is_right(index, piece.position, &buffer);
                if is_equal {
                    failed = partial.write(piece, &buffer);
                }
                !is_equal || failed.is_err()
            });
            failed?;
        }
    }
    Ok(())
}
