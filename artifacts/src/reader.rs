//! Opening a bundle: every check that costs no more than its manifest.
//!
//! Opening is a ladder in which each step trusts only the ones before: length and magic, version, checksum of the
//! header, zero padding, bounds and hash of the manifest, its revision and syntax, every reference in it, and the
//! length of the file against the sum of its sections. Opening does *not* check the bytes of the sections and the
//! padding between them. [`Bundle::section`] hashes a section on its first use, [`Bundle::verify`] does everything.
//! After opening, indices in the manifest need not be checked again.

#![deny(clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::check::check_manifest;
use crate::content_id::SectionId;
use crate::document;
use crate::error::{BundlePart, Error};
use crate::layout::{self, Extent, Header};
use crate::manifest::{MANIFEST_REVISION, Manifest};
use crate::mapping::Mapping;
use crate::references;

/// An opened bundle: its manifest, and its sections as memory. [`Send`] and [`Sync`]; share it freely.
///
/// Invariants:
/// - the manifest passed `check_manifest`;
/// - `extents[i]` is the place of `manifest.sections[i]` and lies within the mapping;
/// - `index` has exactly the manifest's sections.
pub struct Bundle {
    mapping: Mapping,
    manifest: Manifest,
    manifest_id: SectionId,
    extents: Vec<Extent>,
    index: BTreeMap<SectionId, usize>,
    /// Per section: unset until it is hashed; then right, or its wrong hash.
    hashed: Vec<OnceLock<Result<(), SectionId>>>,
}

impl Bundle {
    /// Opens and maps the bundle at `path`, and checks everything but the content of its sections. The file may be
    /// replaced or unlinked while the bundle is open, but not changed in place (see [`Mapping`]).
    ///
    /// Errors: [`Error::Io`], [`Error::NotABundle`], [`Error::TooNew`], [`Error::Truncated`],
    /// [`Error::TooLong`], [`Error::Header`], [`Error::Corrupt`], [`Error::Padding`], [`Error::Manifest`],
    /// [`Error::InvalidManifest`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::from_mapping(Mapping::open(path.as_ref())?)
    }

    /// Opens a bundle that is in memory already, with the same checks, on a page-aligned copy of it.
    ///
    /// Errors: as [`Bundle::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        Self::from_mapping(Mapping::of_bytes(bytes)?)
    }

    fn from_mapping(mapping: Mapping) -> Result<Self, Error> {
        let header = Header::decode(&mapping)?;
        let manifest = read_manifest(&mapping, &header)?;
        check_manifest(&manifest)?;
        let (extents, file_bytes) = layout::place(header.manifest_bytes, &manifest.sections)?;
        layout::check_file_bytes(file_bytes, header.file_bytes)?;
        let index = manifest
            .sections
            .iter()
            .map(|section| section.id)
            .zip(0..)
            .collect();
        let hashed = extents.iter().map(|_| OnceLock::new()).collect();
        Ok(Self {
            mapping,
            manifest,
            manifest_id: header.manifest_id,
            extents,
            index,
            hashed,
        })
    }

    /// The manifest. All references in it are valid.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// blake3 of the manifest's text. Since the manifest names all sections by their content, this names the bundle.
    pub fn manifest_id(&self) -> SectionId {
        self.manifest_id
    }

    /// The whole file as memory, for zero-copy binding and advice. Ranges come from
    /// [`Bundle::section_range`].
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The bytes of a section, which begin at a multiple of 4096 in memory as in the file. The first call
    /// hashes them, from any thread; later ones cost a look-up.
    ///
    /// Errors: [`Error::Corrupt`], with what the section is; [`Error::NoSuchSection`].
    pub fn section(&self, id: SectionId) -> Result<&[u8], Error> {
        let position = self.position(id)?;
        let bytes = self.bytes_of(position)?;
        let checked = self
            .hashed
            .get(position)
            .ok_or(no_such(id))?
            .get_or_init(|| compare(id, bytes));
        match checked {
            Ok(()) => Ok(bytes),
            Err(found) => Err(Error::Corrupt {
                part: self.part(id),
                expected: id,
                found: *found,
            }),
        }
    }

    /// Returns a copy of a section, hashed on each call: a write to the mapped file during the call cannot change the
    /// checked bytes. For sections that are parsed; weights are too large to be copied.
    ///
    /// Errors: [`Error::Corrupt`], with what the section is; [`Error::NoSuchSection`].
    pub fn section_copy(&self, id: SectionId) -> Result<Vec<u8>, Error> {
        let copy = self.section_unverified(id)?.to_vec();
        match compare(id, &copy) {
            Ok(()) => Ok(copy),
            Err(found) => Err(Error::Corrupt {
                part: self.part(id),
                expected: id,
                found,
            }),
        }
    }

    /// Marks all sections as right without hashing them: for a caller who knows that this very file was verified before
    /// and has not changed since (see [`crate::FileIdentity`]).
    pub fn trust_sections(&self) {
        for hashed in &self.hashed {
            // If a section was hashed already, that outcome stays.
            let _ = hashed.set(Ok(()));
        }
    }

    /// Returns the bytes of a section without hashing them.
    ///
    /// Errors: [`Error::NoSuchSection`].
    pub fn section_unverified(&self, id: SectionId) -> Result<&[u8], Error> {
        self.bytes_of(self.position(id)?)
    }

    /// The range of a section in the file, in bytes, without padding.
    ///
    /// Errors: [`Error::NoSuchSection`].
    pub fn section_range(&self, id: SectionId) -> Result<Range<u64>, Error> {
        Ok(self.extent(self.position(id)?)?.range())
    }

    /// A section's name for people, e.g. ``weight `model.norm.weight` values``.
    pub fn label(&self, id: SectionId) -> String {
        references::label(&self.manifest, id)
    }

    /// Hashes one section and checks the padding after it. Remembers nothing.
    pub(crate) fn verify_section(&self, position: usize) -> Result<(), Error> {
        let extent = self.extent(position)?;
        let expected = self
            .manifest
            .sections
            .get(position)
            .ok_or_else(|| self.no_extent(position))?
            .id;
        if let Err(found) = compare(expected, self.slice(extent.range())?) {
            return Err(Error::Corrupt {
                part: self.part(expected),
                expected,
                found,
            });
        }
        let padding = extent.padding();
        layout::check_zero(self.slice(padding.clone())?, padding.start, || {
            self.part(expected)
        })
    }

    /// The section as errors name it.
    fn part(&self, id: SectionId) -> BundlePart {
        BundlePart::Section {
            id,
            label: self.label(id),
        }
    }

    fn position(&self, id: SectionId) -> Result<usize, Error> {
        self.index.get(&id).copied().ok_or(no_such(id))
    }

    fn bytes_of(&self, position: usize) -> Result<&[u8], Error> {
        self.slice(self.extent(position)?.range())
    }

    fn extent(&self, position: usize) -> Result<Extent, Error> {
        self.extents
            .get(position)
            .copied()
            .ok_or_else(|| self.no_extent(position))
    }

    /// Bytes of the file. Never fails for an extent that passed opening.
    fn slice(&self, range: Range<u64>) -> Result<&[u8], Error> {
        let truncated = Error::Truncated {
            expected: range.end,
            found: self.mapping.len() as u64,
        };
        let (Ok(start), Ok(end)) = (usize::try_from(range.start), usize::try_from(range.end))
        else {
            return Err(truncated);
        };
        self.mapping.get(start..end).ok_or(truncated)
    }

    /// The error for a missing extent. Cannot happen after opening.
    fn no_extent(&self, position: usize) -> Error {
        let found = format!("`{position}`");
        Error::invalid(
            "sections",
            found,
            format!("fewer than `{}`", self.manifest.sections.len()),
        )
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle")
            .field("model", &self.manifest.model.name)
            .field("manifest_id", &self.manifest_id)
            .field("sections", &self.extents.len())
            .finish_non_exhaustive()
    }
}

/// The field that decides whether the others can be read.
#[derive(Deserialize)]
struct Probe {
    revision: u32,
}

fn no_such(id: SectionId) -> Error {
    Error::NoSuchSection {
        id,
        place: "bundle",
    }
}

fn compare(expected: SectionId, bytes: &[u8]) -> Result<(), SectionId> {
    let found = SectionId::of(bytes);
    if found == expected {
        Ok(())
    } else {
        Err(found)
    }
}

/// Checks the manifest's hash and padding and parses it.
pub(crate) fn read_manifest(file: &[u8], header: &Header) -> Result<Manifest, Error> {
    let extent = Extent {
        offset: layout::HEADER_BYTES as u64,
        bytes: header.manifest_bytes,
    };
    let text = file.get(header.manifest_range()?).unwrap_or_default();
    if let Err(found) = compare(header.manifest_id, text) {
        return Err(Error::Corrupt {
            part: BundlePart::Manifest,
            expected: header.manifest_id,
            found,
        });
    }
    let padding = extent.padding();
    let end = usize::try_from(padding.end).unwrap_or(usize::MAX);
    let start = usize::try_from(padding.start).unwrap_or(usize::MAX);
    layout::check_zero(
        file.get(start..end).unwrap_or_default(),
        padding.start,
        || BundlePart::Manifest,
    )?;
    parse_manifest(text)
}

/// Parses a manifest. A revision that is too new is reported as such, not as an unknown field.
pub(crate) fn parse_manifest(text: &[u8]) -> Result<Manifest, Error> {
    let manifest = document::parse::<Manifest>(text);
    let revision = match &manifest {
        Ok(manifest) => Some(manifest.revision),
        Err(_) => document::parse::<Probe>(text)
            .ok()
            .map(|probe| probe.revision),
    };
    if let Some(found) = revision.filter(|revision| *revision > MANIFEST_REVISION) {
        return Err(Error::TooNew {
            part: BundlePart::ManifestRevision,
            found,
            supported: MANIFEST_REVISION,
        });
    }
    manifest.map_err(|error| Error::Manifest {
        line: error.span.start.line,
        column: error.span.start.col,
        message: error.code.to_string(),
    })
}
