//! The reader on two real blobs, and on every kind of damage to them.
//!
//! `profiler/testdata/matmul-*.blob` are a product of f16 [16, 64] and [64, 64]ᵀ, both inputs, compiled by
//! OpenVINO 2026.4.1 for the platform in their name. Records and estimates are tested in files of their own.

use std::ops::Range;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

pub(super) const MATMUL_3720: &[u8] = include_bytes!("../../testdata/matmul-3720.blob");
pub(super) const MATMUL_4000: &[u8] = include_bytes!("../../testdata/matmul-4000.blob");
const BLOBS: [&[u8]; 2] = [MATMUL_3720, MATMUL_4000];

const RECORD: &str = "compiler=8.4;npu=3720;t=2;elf=1.2.0;mi=7.0.4";

pub(super) fn estimate(blob: &[u8]) -> PerfMetrics {
    let estimate = NpuBlob::read(blob).and_then(|blob| blob.perf_metrics());
    estimate.unwrap().unwrap()
}

#[track_caller]
fn refused(blob: &[u8], expected: &str) {
    let read = NpuBlob::read(blob).and_then(|blob| blob.perf_metrics());
    assert_eq!(read.unwrap_err().to_string(), expected);
}

/// A blob of these parts, with the footer that belongs to them.
fn assemble(payload: &[u8], metadata: &[u8]) -> Vec<u8> {
    let payload_bytes = (payload.len() as u64).to_le_bytes();
    [payload, metadata, &payload_bytes, b"OVNPU"].concat()
}

/// Metadata up to the record, with two init schedules and layouts of three inputs and an output.
fn metadata_of(major: u16, minor: u16, encrypted: u8, record: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [minor, major, 2026, 4, 1] {
        bytes.extend(number.to_le_bytes());
    }
    for number in [2_u64, 4096, 8192, 1, 3, 1] {
        bytes.extend(number.to_le_bytes());
    }
    for layout in ["[...]", "", "[N,C]", "[?]"] {
        bytes.extend((layout.len() as u16).to_le_bytes());
        bytes.extend(layout.as_bytes());
    }
    bytes.extend(0x0008_0004_u32.to_le_bytes());
    bytes.push(encrypted);
    bytes.extend((record.len() as u64).to_le_bytes());
    bytes.extend(record);
    bytes
}

/// Offset of the header of the section of estimates.
fn header_offset(payload: &[u8]) -> usize {
    let wanted = sections::PERF_METRICS.to_le_bytes();
    let mut headers = payload[64..].chunks(64);
    64 + 64 * headers.position(|header| header[4..8] == wanted).unwrap()
}

/// Offset of the section of estimates.
fn section_offset(payload: &[u8]) -> usize {
    let offset = &payload[header_offset(payload) + 24..][..8];
    u64::from_le_bytes(offset.try_into().unwrap()) as usize
}

/// The intact estimates: most damage does not reach them.
static INTACT: LazyLock<[PerfMetrics; 2]> = LazyLock::new(|| BLOBS.map(estimate));

/// Reads a damaged blob. If it is still accepted, it must hold its invariants.
fn survives(blob: &[u8]) {
    let Ok(blob) = NpuBlob::read(blob) else {
        return;
    };
    let record = blob.compatibility();
    assert_eq!(BlobCompatibility::parse(record.text()).unwrap(), *record);
    if let Ok(Some(estimate)) = blob.perf_metrics()
        && !INTACT.contains(&estimate)
    {
        perf_metrics::tests::holds_promises(&estimate);
    }
}

#[test]
fn metadata_of_real_blobs() {
    for (blob, record) in [
        (MATMUL_3720, RECORD),
        (
            MATMUL_4000,
            "compiler=8.4;npu=4000;t=4;elf=1.2.2;mi=11.4.10",
        ),
    ] {
        let blob = NpuBlob::read(blob).unwrap();
        assert_eq!(blob.metadata().openvino.to_string(), "2026.4.1");
        assert!(!blob.metadata().is_encrypted);
        assert_eq!(blob.compatibility().text(), record);
        // The compiler leaves the record in the payload too, as a section of its own.
        let section = sections::of_type(blob.payload, 0x8aaa_aab2);
        let section = section.unwrap().unwrap();
        assert_eq!(section.strip_suffix(b"\0"), Some(record.as_bytes()));
    }
}

#[test]
fn metadata_are_read_by_their_layout() {
    let (payload, _) = metadata::split(MATMUL_3720).unwrap();
    let read = |metadata: &[u8]| {
        let blob = assemble(payload, metadata);
        NpuBlob::read(&blob).map(|blob| blob.metadata().clone())
    };
    let expected = read(&metadata_of(2, 6, 0, RECORD.as_bytes())).unwrap();
    assert_eq!(expected.openvino.to_string(), "2026.4.1");
    assert_eq!(expected.compatibility.text(), RECORD);
    let terminated = format!("{RECORD}\0");
    let terminated = metadata_of(2, 7, 0, terminated.as_bytes());
    assert_eq!(read(&terminated).unwrap(), expected);
    let later = [metadata_of(2, 9, 0, RECORD.as_bytes()), vec![0; 77]].concat();
    assert_eq!(read(&later).unwrap(), expected);

    let encrypted = metadata_of(2, 7, 1, RECORD.as_bytes());
    assert!(read(&encrypted).unwrap().is_encrypted);
    refused(
        &assemble(payload, &encrypted),
        "the blob's payload is encrypted",
    );
    for (metadata, expected) in [
        (
            metadata_of(2, 5, 0, b"x"),
            "the blob has metadata `2.5`, expected `2.6` or a later `2`",
        ),
        (
            metadata_of(3, 7, 0, b"x"),
            "the blob has metadata `3.7`, expected `2.6` or a later `2`",
        ),
        (
            metadata_of(2, 7, 0, b""),
            "the blob's compatibility record is empty",
        ),
    ] {
        refused(&assemble(payload, &metadata), expected);
    }
    for length in 0..encrypted.len() {
        let error = read(&encrypted[..length]).unwrap_err();
        assert!(
            matches!(
                error,
                BlobError::Truncated {
                    part: "metadata",
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn what_is_no_blob_is_refused() {
    let (payload, metadata) = metadata::split(MATMUL_3720).unwrap();
    let changed = |at: usize, bytes: &[u8]| {
        let mut payload = payload.to_vec();
        payload[at..at + bytes.len()].copy_from_slice(bytes);
        assemble(&payload, metadata)
    };
    refused(b"no", "not an NPU blob: it ends in `no`, expected `OVNPU`");
    refused(
        b"\x7fELF OVNPU",
        "the blob is truncated: footer goes on for `8` bytes, `5` are left",
    );
    refused(
        &[&[9, 0, 0, 0, 0, 0, 0, 0], &b"OVNPU"[..]].concat(),
        "the blob is truncated: payload goes on for `9` bytes, `0` are left",
    );
    refused(
        &assemble(b"", metadata),
        "the blob is truncated: ELF header goes on for `16` bytes, `0` are left",
    );
    refused(
        &assemble(&payload[..40], metadata),
        "the blob's ELF header is unreadable",
    );
    refused(
        &changed(4, &[1]),
        "the blob's payload begins with `\\x7fELF\\x01\\x01`, expected a little-endian ELF64 file",
    );
    refused(
        &changed(40, &[0xff; 8]),
        "the blob is truncated: table of sections goes on for `18446744073709551615` bytes, `40960` are left",
    );
    refused(
        &changed(58, &[40, 0]),
        "the blob's section headers have `40` bytes each, expected `64`",
    );
    refused(
        &changed(60, &[0xff, 0xff]),
        "the blob is truncated: table of sections goes on for `4194240` bytes, `40896` are left",
    );
    let other = metadata_of(2, 7, 0, RECORD.replace("3720", "6000").as_bytes());
    refused(
        &assemble(payload, &other),
        "the blob is for NPU platform `6000`, expected one whose timer is known: `3720`, `4000`, `5010` or `5020`",
    );
}

#[test]
fn a_section_of_estimates_that_cannot_be_is_refused() {
    let (payload, metadata) = metadata::split(MATMUL_3720).unwrap();
    let header = header_offset(payload);
    let changed = |at: usize, bytes: &[u8]| {
        let mut payload = payload.to_vec();
        payload[at..at + bytes.len()].copy_from_slice(bytes);
        assemble(&payload, metadata)
    };
    refused(
        &changed(header - 60, &sections::PERF_METRICS.to_le_bytes()),
        "the blob has more than one section of type `0x8aaaaaae`",
    );
    refused(
        &changed(header + 24, &[0xff; 8]),
        "the blob is truncated: section goes on for `18446744073709551615` bytes, `40960` are left",
    );
    refused(
        &changed(header + 32, &[0xff; 8]),
        "the blob is truncated: section goes on for `18446744073709551615` bytes, `6720` are left",
    );
    refused(
        &changed(header + 32, &[0x41]),
        "the blob's section of estimates has `321` bytes, expected `320`",
    );
}

#[test]
fn an_estimate_that_was_not_made_is_none() {
    let (payload, metadata) = metadata::split(MATMUL_3720).unwrap();
    let mut absent = payload.to_vec();
    absent[header_offset(payload) + 4] ^= 1;
    let mut zeros = payload.to_vec();
    zeros[section_offset(payload) + 16..][..200].fill(0);
    for payload in [absent, zeros] {
        let blob = assemble(&payload, metadata);
        assert_eq!(NpuBlob::read(&blob).unwrap().perf_metrics().unwrap(), None);
    }
}

#[test]
fn every_truncation_is_survived() {
    for blob in BLOBS {
        for length in 0..blob.len() {
            assert!(NpuBlob::read(&blob[..length]).is_err(), "{length} bytes");
        }
        // With a matching footer, the payload alone is short.
        let (payload, metadata) = metadata::split(blob).unwrap();
        let needed = section_offset(payload) + 320;
        for length in 0..payload.len() {
            let cut = assemble(&payload[..length], metadata);
            let read = NpuBlob::read(&cut).unwrap().perf_metrics();
            assert_eq!(read.is_ok(), length >= needed, "{length} bytes");
        }
    }
}

/// The areas that the reader reads: ELF header, table of sections, estimate, metadata and footer.
fn areas(blob: &[u8]) -> [Range<usize>; 4] {
    let (payload, _) = metadata::split(blob).unwrap();
    let section_count = u16::from_le_bytes([payload[60], payload[61]]);
    let section = section_offset(payload);
    [
        0..64,
        64..64 + 64 * usize::from(section_count),
        section..section + 320,
        payload.len()..blob.len(),
    ]
}

#[test]
fn every_byte_may_be_another() {
    let mut damaged = MATMUL_3720.to_vec();
    for at in 0..damaged.len() {
        damaged[at] ^= 0xff;
        survives(&damaged);
        damaged[at] ^= 0xff;
    }
}

#[test]
fn every_bit_that_is_read_may_be_another() {
    for blob in BLOBS {
        let mut damaged = blob.to_vec();
        for (at, bit) in areas(blob)
            .into_iter()
            .flatten()
            .flat_map(|at| (0..8).map(move |bit| (at, bit)))
        {
            damaged[at] ^= 1 << bit;
            survives(&damaged);
            damaged[at] ^= 1 << bit;
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(any: Vec<u8>) {
        survives(&any);
        let (payload, metadata) = metadata::split(MATMUL_3720).unwrap();
        survives(&assemble(&any, metadata));
        survives(&assemble(payload, &any));
        survives(&assemble(payload, &[b"\x07\0\x02\0", any.as_slice()].concat()));
        survives(&assemble(payload, &metadata_of(2, 7, 0, &any)));
    }

    #[test]
    fn damaged_blobs_are_survived(
        changes in prop::collection::vec((0_usize..4, any::<prop::sample::Index>(), any::<u8>()), 1..12),
        which in 0..BLOBS.len(),
    ) {
        let mut blob = BLOBS[which].to_vec();
        let areas = areas(&blob);
        for (area, index, byte) in changes {
            let area = areas[area].clone();
            blob[area.start + index.index(area.len())] = byte;
        }
        survives(&blob);
    }
}
