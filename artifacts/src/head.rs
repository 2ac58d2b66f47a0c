//! The head of a bundle: header page and manifest, without the file behind them.
//!
//! A head says everything about its file but the sections' bytes: their names, places and hashes. So what is sent in
//! pieces is planned and checked by it, and a slice is written by it.

use std::ops::Range;

use crate::check::check_manifest;
use crate::content_id::SectionId;
use crate::error::Error;
use crate::layout::{self, Extent, Header, MANIFEST_BYTES_MAX};
use crate::manifest::Manifest;
use crate::parts::{self, FilePart};
use crate::reader::{Bundle, read_manifest};
use crate::writer::encode_manifest;

/// Longest head, in bytes: a header page and the longest manifest.
pub const HEAD_BYTES_MAX: u64 = layout::HEADER_BYTES as u64 + MANIFEST_BYTES_MAX;

/// Header and manifest of a bundle.
///
/// Invariants: the manifest passed `check_manifest`; `bytes` is header page, manifest and zeros up to a page;
/// `extents[i]` is the place of `manifest.sections[i]`.
#[derive(Debug, Clone)]
pub struct BundleHead {
    header: Header,
    manifest: Manifest,
    bytes: Vec<u8>,
    extents: Vec<Extent>,
}

impl BundleHead {
    /// The head of the file that a manifest describes, with its sections in the manifest's order.
    ///
    /// Errors: [`Error::InvalidManifest`], [`Error::EncodeManifest`], [`Error::TooLarge`].
    pub fn of(manifest: Manifest) -> Result<Self, Error> {
        check_manifest(&manifest)?;
        Self::of_checked(manifest)
    }

    /// The head of a manifest that passed its check.
    pub(crate) fn of_checked(manifest: Manifest) -> Result<Self, Error> {
        let text = encode_manifest(&manifest)?;
        let (extents, file_bytes) = layout::place(text.len() as u64, &manifest.sections)?;
        let header = Header {
            file_bytes,
            manifest_bytes: text.len() as u64,
            manifest_id: SectionId::of(&text),
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&text);
        bytes.resize(bytes.len().next_multiple_of(layout::HEADER_BYTES), 0);
        Ok(Self {
            header,
            manifest,
            bytes,
            extents,
        })
    }

    /// Reads a head that came from somewhere: the first bytes of a file up to its first section, no more and no fewer.
    /// Makes all checks of [`Bundle::open`] but that of the file's length.
    ///
    /// Errors: those of [`Bundle::open`].
    pub fn read(bytes: Vec<u8>) -> Result<Self, Error> {
        let header = Header::decode_head(&bytes)?;
        let manifest = read_manifest(&bytes, &header)?;
        check_manifest(&manifest)?;
        let (extents, file_bytes) = layout::place(header.manifest_bytes, &manifest.sections)?;
        layout::check_file_bytes(file_bytes, header.file_bytes)?;
        Ok(Self {
            header,
            manifest,
            bytes,
            extents,
        })
    }

    /// The head of an open bundle.
    ///
    /// Errors: none after the bundle was opened.
    pub fn of_bundle(bundle: &Bundle) -> Result<Self, Error> {
        let file: &[u8] = bundle.mapping();
        let header = Header::decode(file)?;
        let end = header.head_bytes();
        let end = usize::try_from(end).unwrap_or(usize::MAX).min(file.len());
        let manifest = bundle.manifest().clone();
        let (extents, _) = layout::place(header.manifest_bytes, &manifest.sections)?;
        Ok(Self {
            bytes: file.get(..end).unwrap_or_default().to_vec(),
            header,
            manifest,
            extents,
        })
    }

    /// The manifest. All references in it are valid.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// blake3 of the manifest's text, which names the bundle.
    pub fn manifest_id(&self) -> SectionId {
        self.header.manifest_id
    }

    /// Header page, manifest and padding: the file up to its first section.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length of the whole file, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.header.file_bytes
    }

    /// Cuts the file into parts, the head first.
    pub fn parts(&self) -> Vec<FilePart> {
        parts::parts(&self.manifest, &self.header, &self.extents)
    }

    /// The places of all sections.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The place of a section in the file, in bytes, without padding, by its index in [`Manifest::sections`].
    pub fn section_range(&self, index: usize) -> Option<Range<u64>> {
        self.extents.get(index).map(Extent::range)
    }
}
