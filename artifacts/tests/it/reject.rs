//! Refused files, and the message to the user.

use std::sync::LazyLock;

use heg_artifacts::layout::{HEADER_BYTES, reseal};
use heg_artifacts::{Bundle, SectionId};

use crate::tiny::{self, Plan};

/// Written once, since writing syncs.
static TINY: LazyLock<Vec<u8>> = LazyLock::new(|| tiny::bundle_bytes(&Plan::default()));

/// The message on opening a changed file. `seal` makes its hashes right again.
fn open(seal: Seal, damage: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = TINY.clone();
    damage(&mut bytes);
    if seal == Seal::Renewed {
        reseal(&mut bytes);
    }
    Bundle::from_bytes(&bytes).unwrap_err().to_string()
}

#[derive(PartialEq)]
enum Seal {
    Kept,
    Renewed,
}

/// Replaces a piece of the manifest by one of the same length.
fn replace(bytes: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let position = bytes
        .windows(from.len())
        .position(|window| window == from.as_bytes())
        .unwrap();
    bytes[position..position + to.len()].copy_from_slice(to.as_bytes());
}

#[test]
fn headers() {
    let expected =
        r"not a HEG bundle: the file begins with `PK\x03\x04NDL\x00`, expected `HEGBNDL\x00`";
    assert_eq!(
        open(Seal::Kept, |bytes| bytes[..4]
            .copy_from_slice(b"PK\x03\x04")),
        expected
    );
    let expected = "format version `2` is too new: this program reads up to `1`";
    assert_eq!(open(Seal::Kept, |bytes| bytes[8] = 2), expected);
    let expected = "the header says format version `0`, expected `1` to `1`";
    assert_eq!(open(Seal::Kept, |bytes| bytes[8] = 0), expected);
    let expected = "the bundle is truncated: `12` bytes, expected `4096`";
    assert_eq!(open(Seal::Kept, |bytes| bytes.truncate(12)), expected);
    let error = open(Seal::Kept, |bytes| bytes[16] ^= 1);
    assert!(
        error.starts_with("the header is corrupt: its blake3 is `"),
        "{error}"
    );
    let expected = "the padding after the header is corrupt: byte `4000` of the file is `0x07`, expected `0x00`";
    assert_eq!(open(Seal::Kept, |bytes| bytes[4000] = 7), expected);
    let error = open(Seal::Kept, |bytes| bytes[HEADER_BYTES] ^= 1);
    assert!(
        error.starts_with("the manifest is corrupt: its blake3 is `"),
        "{error}"
    );
}

/// Headers with a right checksum that no writer produces.
#[test]
fn sealed_headers() {
    fn sealed(range: std::ops::Range<usize>, value: u64) -> String {
        open(Seal::Kept, |bytes| {
            let count = range.len();
            bytes[range].copy_from_slice(&value.to_le_bytes()[..count]);
            let hash = SectionId::of(&bytes[..72]);
            bytes[72..104].copy_from_slice(hash.as_bytes());
        })
    }
    let file_bytes = TINY.len();
    assert_eq!(
        sealed(12..16, 104),
        "the header says header bytes `104`, expected `4096`"
    );
    assert_eq!(
        sealed(24..32, 8192),
        "the header says manifest offset `8192`, expected `4096`"
    );
    assert_eq!(
        sealed(16..24, u64::MAX),
        format!(
            "the bundle is truncated: `{file_bytes}` bytes, expected `{}`",
            u64::MAX
        )
    );
    assert_eq!(
        sealed(32..40, u64::MAX),
        format!(
            "the header says manifest bytes `{}`, expected at most `268435456`",
            u64::MAX
        )
    );
    assert_eq!(
        sealed(32..40, 1 << 27),
        format!(
            "the header says manifest bytes `134217728`, expected at most what is in the file's `{file_bytes}`"
        )
    );
}

#[test]
fn manifests_that_do_not_parse() {
    let error = open(Seal::Renewed, |bytes| {
        replace(bytes, "revision:", "revision;")
    });
    assert_eq!(
        error,
        "the manifest does not parse at line `2`, column `10`: Expected colon"
    );
    let error = open(Seal::Renewed, |bytes| replace(bytes, "hidden:", "hiddem:"));
    assert!(
        error.contains("Unexpected field named `hiddem` in `Model`"),
        "{error}"
    );
    let error = open(Seal::Renewed, |bytes| bytes[HEADER_BYTES + 40] = 0xff);
    assert!(
        error.starts_with("the manifest does not parse at line"),
        "{error}"
    );
    let error = open(Seal::Renewed, |bytes| {
        replace(bytes, "revision: 1", "revision: 9");
        replace(bytes, "hidden:", "hiddem:");
    });
    assert_eq!(
        error,
        "manifest revision `9` is too new: this program reads up to `1`"
    );
}

#[test]
fn readers_check_too() {
    let error = open(Seal::Renewed, |bytes| {
        replace(bytes, "kv_heads: 2", "kv_heads: 3")
    });
    assert_eq!(
        error,
        "the manifest is invalid: `model.heads` is `4`, expected a multiple of `model.kv_heads`: `3`"
    );
    let error = open(Seal::Renewed, |bytes| bytes.extend([0; 4096]));
    let bytes = TINY.len();
    assert_eq!(
        error,
        format!(
            "the bundle is too long: `{}` bytes, expected `{bytes}`",
            bytes + 4096
        )
    );
}
