//! A part that is being fetched: a file with room for what comes, and some pieces that are right already.
//!
//! There is no journal: which pieces are right is found out by hashing them. So a partial file survives kills, power cuts
//! and weeks, and nothing that is in it is believed for being there.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::PathBuf;

use heg_artifacts::layout::ALIGNMENT;
use heg_artifacts::{BLOCK_BYTES, BundleHead, FilePart, SectionBlocks};

use crate::error::ShipError;
use crate::offer::part_bytes;
use crate::platform;
use crate::store::{DeviceStore, PARTIAL};

/// A block of a section, as part of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the section in the manifest.
    pub(crate) section: usize,
    /// Number of the block in its section.
    pub(crate) position: u64,
    /// Place in the part, in bytes.
    pub(crate) offset: u64,
    /// Length in bytes, at most a block.
    pub(crate) bytes: u64,
}

/// A part's file while it is filled.
pub(crate) struct Partial {
    /// Index of the part in the bundle.
    pub(crate) part: usize,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    /// Whether there was a file before.
    pub(crate) was_here: bool,
}

/// The pieces of a part, in order. Zeros between sections are no pieces: the file has them by itself.
pub(crate) fn pieces(head: &BundleHead, part: &FilePart) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for section in part.sections.clone() {
        let Some(range) = head.section_range(section) else {
            continue;
        };
        let mut start = range.start;
        for position in 0.. {
            if start >= range.end {
                break;
            }
            let bytes = BLOCK_BYTES.min(range.end - start);
            pieces.push(Piece {
                section,
                position,
                offset: start.saturating_sub(part.range.start),
                bytes,
            });
            start = start.saturating_add(bytes);
        }
    }
    pieces
}

impl Partial {
    /// Opens the file of a part, with its length. Room is reserved once it is known what has to be fetched: room under a
    /// copy would stay taken on btrfs, though the copy shares blocks.
    pub(crate) fn open(
        store: &DeviceStore,
        index: usize,
        part: &FilePart,
    ) -> Result<Self, ShipError> {
        let folder = store.inner(PARTIAL)?;
        let path = folder.path().join(format!("{}.partial", part.id));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(ShipError::io("open", &path))?;
        let length = file
            .metadata()
            .map_err(ShipError::io("inspect", &path))?
            .len();
        let expected = part_bytes(part);
        if length != expected {
            let sized = file.set_len(expected);
            sized.map_err(ShipError::io("set the length of", &path))?;
        }
        Ok(Self {
            part: index,
            file,
            path,
            was_here: length > 0,
        })
    }

    /// Reserves room for pieces that are to be fetched: one range for neighbours.
    pub(crate) fn reserve(&self, missing: &[Piece], part: &FilePart) -> Result<(), ShipError> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for piece in missing {
            let end = piece.offset.saturating_add(piece.bytes);
            match ranges.last_mut() {
                Some(last) if piece.offset.saturating_sub(last.end) < ALIGNMENT => last.end = end,
                _ => ranges.push(piece.offset..end),
            }
        }
        if part.sections.is_empty() {
            // The head, which is written whole.
            ranges.push(0..part_bytes(part));
        }
        for range in ranges {
            let reserved = platform::reserve(&self.file, range);
            reserved.map_err(ShipError::io("reserve room for", &self.path))?;
        }
        Ok(())
    }

    /// Whether the file has a piece.
    pub(crate) fn has(&self, piece: &Piece, blocks: &SectionBlocks, buffer: &mut Vec<u8>) -> bool {
        read_piece(&self.file, piece.offset, piece.bytes, buffer)
            && blocks.is_right(piece.section, piece.position, buffer)
    }

    /// Writes a piece that was checked.
    pub(crate) fn write(&self, piece: &Piece, bytes: &[u8]) -> Result<(), ShipError> {
        let written = platform::write_at(&self.file, bytes, piece.offset);
        written.map_err(ShipError::io("write", &self.path))
    }

    /// Writes the zeros between the pieces, which a file that was here before may lack.
    pub(crate) fn clear_padding(&self, pieces: &[Piece], part: &FilePart) -> Result<(), ShipError> {
        let mut end = 0_u64;
        let ends = pieces.iter().map(|piece| (piece.offset, piece.bytes));
        for (offset, bytes) in ends.chain([(part_bytes(part), 0)]) {
            let gap = usize::try_from(offset.saturating_sub(end)).unwrap_or(usize::MAX);
            let zeros = vec![0; gap.min(BLOCK_BYTES as usize)];
            let written = platform::write_at(&self.file, &zeros, end);
            written.map_err(ShipError::io("write", &self.path))?;
            end = offset.saturating_add(bytes);
        }
        Ok(())
    }
}

/// Fills `buffer` with a run of a file. Returns whether the file has it.
pub(crate) fn read_piece(file: &File, offset: u64, bytes: u64, buffer: &mut Vec<u8>) -> bool {
    let Ok(length) = usize::try_from(bytes) else {
        return false;
    };
    buffer.resize(length, 0);
    platform::read_at(file, buffer, offset).is_ok()
}
