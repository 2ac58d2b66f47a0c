//! Sections of a blob's payload, an ELF64 file of Intel's NPU.
//!
//! Headers are decoded by the `elf` crate; this file finds a section by its type, as the device's loader does
//! (`VPUXLoader::getSectionsOfType` of npu_plugin_elf). Names differ between platforms: `.perf.metrics` on
//! 3720 is `perf.metrics` on later ones. `ElfBytes` of the crate is not used: it insists on version 1 in
//! the identification, where the compiler writes 0.

#![deny(clippy::arithmetic_side_effects)]

use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader};
use elf::section::{SectionHeader, SectionHeaderTable};

use super::bytes::Bytes;
use super::error::BlobError;

/// `VPU_SHT_PERF_METRICS` of npu_plugin_elf.
pub(super) const PERF_METRICS: u32 = 0x8aaa_aaae;

/// The bytes of the only section of this type, if there is one.
pub(super) fn of_type(elf: &[u8], section_type: u32) -> Result<Option<&[u8]>, BlobError> {
    let mut found = section_headers(elf)?
        .iter()
        .filter(|header| header.sh_type == section_type);
    let (first, second) = (found.next(), found.next());
    match (first, second) {
        (None, _) => Ok(None),
        (Some(header), None) => section_bytes(elf, &header).map(Some),
        (Some(_), Some(_)) => Err(BlobError::SectionTwice { section_type }),
    }
}

fn section_headers(elf: &[u8]) -> Result<SectionHeaderTable<'_, LittleEndian>, BlobError> {
    let mut bytes = Bytes::new("ELF header", elf);
    let ident = bytes.take(IDENT_BYTES)?;
    if !ident.starts_with(&IDENT) {
        return Err(BlobError::NotElf {
            found: ident.iter().take(IDENT.len()).copied().collect(),
        });
    }
    let header = FileHeader::parse_tail((LittleEndian, Class::ELF64, 0, 0), bytes.rest())?;
    if u64::from(header.e_shentsize) != SECTION_HEADER_BYTES {
        return Err(BlobError::SectionHeaderBytes {
            found: header.e_shentsize,
        });
    }
    let mut table = Bytes::new("table of sections", elf);
    table.take(header.e_shoff)?;
    let headers = table.take(u64::from(header.e_shnum).saturating_mul(SECTION_HEADER_BYTES))?;
    Ok(SectionHeaderTable::new(LittleEndian, Class::ELF64, headers))
}

fn section_bytes<'a>(elf: &'a [u8], header: &SectionHeader) -> Result<&'a [u8], BlobError> {
    let mut bytes = Bytes::new("section", elf);
    bytes.take(header.sh_offset)?;
    bytes.take(header.sh_size)
}

/// Magic, 64 bit, little-endian. The rest of the identification does not matter here.
const IDENT: [u8; 6] = *b"\x7fELF\x02\x01";

const IDENT_BYTES: u64 = 16;
const SECTION_HEADER_BYTES: u64 = 64;
