//! Bundles of released formats, kept for ever, and the page that describes them.
//!
//! Until the first release `HEG_BLESS=1` regenerates them; afterwards a new revision adds a fixture and the old ones
//! stay as they are.

use std::fs;
use std::path::{Path, PathBuf};

use heg_artifacts::{Bundle, SectionId};

use crate::tiny::{self, Plan};

fn in_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Checks that the file at `path` is `expected`; writes it if `HEG_BLESS` is set.
fn check(path: &str, expected: &[u8]) {
    let path = in_crate(path);
    if std::env::var_os("HEG_BLESS").is_some() {
        fs::write(&path, expected).unwrap();
    }
    let found = fs::read(&path).unwrap();
    assert!(found == expected, "`{}` is out of date", path.display());
}

#[test]
fn version_1_opens() {
    let bytes = tiny::bundle_bytes(&Plan::default());
    check("testdata/v1/tiny.heg", &bytes);
    let bundle = Bundle::open(in_crate("testdata/v1/tiny.heg")).unwrap();
    bundle.verify(std::num::NonZero::<usize>::MIN).unwrap();
    let manifest = bundle.manifest();
    assert_eq!(
        (manifest.model.name.as_str(), manifest.layers.len()),
        ("tiny", 2)
    );
    let template = bundle
        .section(manifest.text.chat_template.unwrap())
        .unwrap();
    assert_eq!(template, b"{{ messages }}");
}

#[test]
fn version_1_opens_with_baked_states() {
    let bytes = tiny::bundle_bytes(&Plan {
        states: vec![("mail", 3), ("notes", 2)],
        ..Plan::default()
    });
    check("testdata/v1/baked.heg", &bytes);
    let bundle = Bundle::open(in_crate("testdata/v1/baked.heg")).unwrap();
    bundle.verify(std::num::NonZero::<usize>::MIN).unwrap();
    let states = &bundle.manifest().states;
    let pages = [states[0].pages.len(), states[1].pages.len()];
    assert_eq!((states[0].name.as_str(), pages), ("mail", [3, 2]));
}

#[test]
fn the_format_page_shows_this_header() {
    let bytes = tiny::bundle_bytes(&Plan::default());
    let page = fs::read_to_string(in_crate("FORMAT.md")).unwrap();
    let (before, rest) = page.split_once("```text hexdump\n").unwrap();
    let (_, after) = rest.split_once("```").unwrap();
    let expected = format!(
        "{before}```text hexdump\n{}```{after}",
        hexdump(&bytes[..112])
    );
    check("FORMAT.md", expected.as_bytes());
    let manifest_bytes = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
    assert_eq!(
        &bytes[40..72],
        SectionId::of(&bytes[4096..4096 + manifest_bytes]).as_bytes()
    );
    assert_eq!(&bytes[72..104], SectionId::of(&bytes[..72]).as_bytes());
    assert_eq!(
        u64::from_le_bytes(bytes[16..24].try_into().unwrap()),
        bytes.len() as u64
    );
}

/// A hex dump of eight bytes per line, with their meaning.
fn hexdump(header: &[u8]) -> String {
    let meaning = |offset: usize| match offset {
        0 => "magic `HEGBNDL\\0`",
        8 => "format version 1 · header bytes 4096",
        16 => "file bytes",
        24 => "manifest offset 4096",
        32 => "manifest bytes",
        40 => "blake3 of the manifest",
        72 => "blake3 of bytes 0..72",
        104 => "zero up to 4096",
        _ => "",
    };
    let line = |(row, bytes): (usize, &[u8])| {
        let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:4}  {}  {}", 8 * row, hex.join(" "), meaning(8 * row))
            .trim_end()
            .to_owned()
            + "\n"
    };
    header.chunks(8).enumerate().map(line).collect()
}
