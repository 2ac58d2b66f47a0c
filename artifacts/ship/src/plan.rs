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
struct LocalSections {
    by_id: BTreeMap<SectionId, Local>,
    by_label: BTreeMap<String, Vec<Local>>,
}

impl LocalSections {
    fn of(store: &DeviceStore) -> Result<Self, ShipError> {
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
        let parts = || {
            absent
                .iter()
                .filter_map(|index| Some((*index, offer.parts.get(*index)?)))
        };
        let sections: BTreeSet<usize> = parts()
            .flat_map(|(_, part)| part.sections.clone())
            .collect();
        check_room(store, parts().map(|(_, part)| part))?;
        let blocks = offer.blocks(&sections)?;
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
