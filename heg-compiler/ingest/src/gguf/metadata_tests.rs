//! Headers and metadata that must be refused, each with its message, and the results of accessors.

use std::path::Path;

use proptest::prelude::*;

use super::metadata::Metadata;

/// A string in the format's encoding.
fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A key with a value whose bytes are given.
fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key.as_bytes()), &kind.to_le_bytes()[..], value].concat()
}

/// A file with these keys and no tensors.
fn file(entries: &[Vec<u8>]) -> Vec<u8> {
    header(3, entries.len() as u64, &entries.concat())
}

fn header(version: u32, keys: u64, rest: &[u8]) -> Vec<u8> {
    [
        &b"GGUF"[..],
        &version.to_le_bytes(),
        &0_u64.to_le_bytes(),
        &keys.to_le_bytes(),
        rest,
    ]
    .concat()
}

fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// One key of every supported kind.
fn good() -> Vec<u8> {
    file(&[
        entry("text", 8, &string(b"llama")),
        entry("u32", 4, &7_u32.to_le_bytes()),
        entry("i32", 5, &(-7_i32).to_le_bytes()),
        entry("u64", 10, &u64::MAX.to_le_bytes()),
        entry("f32", 6, &0.5_f32.to_le_bytes()),
        entry("f64", 12, &0.25_f64.to_le_bytes()),
        entry("infinite", 6, &f32::INFINITY.to_le_bytes()),
        entry("bool", 7, &[1]),
        entry(
            "texts",
            9,
            &array(8, 2, &[string(b"a"), string(b"\xFF")].concat()),
        ),
        entry("f32s", 9, &array(6, 1, &1.5_f32.to_le_bytes())),
        entry("i32s", 9, &array(5, 2, &[1, 0, 0, 0, 255, 255, 255, 255])),
        entry("bools", 9, &array(7, 2, &[1, 0])),
    ])
}

fn refused(content: &[u8], expect: &str) {
    let error = Metadata::read(Path::new("m"), content).unwrap_err();
    assert_eq!(error.to_string(), expect);
}

#[test]
fn accessors_answer_with_the_value() {
    let content = good();
    let metadata = Metadata::read(Path::new("m"), &content).unwrap();
    assert_eq!(metadata.text("text").unwrap(), Some("llama"));
    assert_eq!(metadata.u32("u32").unwrap(), Some(7));
    assert_eq!(metadata.u64("u64").unwrap(), Some(u64::MAX));
    assert_eq!(metadata.f32("f32").unwrap(), Some(0.5));
    assert_eq!(metadata.f32("f64").unwrap(), Some(0.25));
    assert_eq!(metadata.boolean("bool").unwrap(), Some(true));
    let texts = metadata.strings("texts").unwrap().unwrap();
    assert_eq!(texts.len(), 2);
    assert_eq!(texts.collect::<Vec<_>>(), [&b"a"[..], b"\xFF"]);
    assert_eq!(metadata.f32s("f32s").unwrap(), Some(vec![1.5]));
    assert_eq!(metadata.i32s("i32s").unwrap(), Some(vec![1, -1]));
    assert_eq!(metadata.i32s("bools").unwrap(), Some(vec![1, 0]));
    assert_eq!(metadata.text("absent").unwrap(), None);
    assert_eq!(metadata.keys().count(), 12);
    assert_eq!(metadata.tensors_start, content.len());
}

#[test]
fn accessors_say_what_they_found() {
    let content = good();
    let metadata = Metadata::read(Path::new("m"), &content).unwrap();
    let errors = [
        metadata.text("u32").unwrap_err(),
        metadata.u64("i32").unwrap_err(),
        metadata.u32("u64").unwrap_err(),
        metadata.f32("infinite").unwrap_err(),
        metadata.boolean("text").unwrap_err(),
        metadata.strings("f32s").unwrap_err(),
        metadata.f32s("texts").unwrap_err(),
        metadata.i32s("f32s").unwrap_err(),
        metadata.needed("x", None::<u32>, "a number").unwrap_err(),
    ];
    insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"), @r#"
    `m`, key `u32`: found `7`, expected a text in UTF-8
    `m`, key `i32`: found `-7`, expected a whole number that is not negative
    `m`, key `u64`: found `18446744073709551615`, expected a whole number of at most 32 bits that is not negative
    `m`, key `infinite`: found `inf`, expected a finite number
    `m`, key `text`: found "llama", expected true or false
    `m`, key `f32s`: found an array of 1 numbers, expected an array of texts
    `m`, key `texts`: found an array of 2 texts, expected an array of finite f32 numbers
    `m`, key `f32s`: found an array of 1 numbers, expected an array of whole numbers of at most 32 bits
    `m`, key `x`: found nothing, expected a number
    "#);
}

#[test]
fn what_is_no_file_of_ours_is_named() {
    refused(
        b"",
        "`m`, byte 0: this is no GGUF file: it does not begin with `GGUF`",
    );
    refused(
        b"GGML1234",
        "`m`, byte 0: this is no GGUF file: it does not begin with `GGUF`",
    );
    refused(
        &header(1, 0, &[]),
        "`m`, byte 8: GGUF version 1, expected 2 or 3",
    );
    refused(
        &header(3_u32.swap_bytes(), 0, &[]),
        "`m`, byte 8: the file is big-endian, expected little-endian: convert it with `gguf_convert_endian.py` of llama.cpp",
    );
    assert!(Metadata::read(Path::new("m"), &header(2, 0, &[])).is_ok());
}

#[test]
fn absurd_counts_and_lengths_are_refused() {
    refused(
        &header(3, u64::MAX, &[0; 40]),
        "`m`, byte 24: 18446744073709551615 keys cannot be: the rest of the file has room for 3",
    );
    refused(
        &header(3, 70_000, &vec![0; 1 << 20]),
        "`m`, byte 24: 70000 keys, at most 65536 are read",
    );
    refused(
        &header(3, 1, &[255; 16]),
        "`m`, byte 32: the file ends within a key: 18446744073709551615 bytes are needed, 8 are left",
    );
    refused(
        &file(&[entry("a", 8, &[255; 8])]),
        "`m`, byte 45: the file ends within a text: 18446744073709551615 bytes are needed, 0 are left",
    );
    refused(
        &file(&[entry("a", 9, &array(4, 1 << 62, &[0; 8]))]),
        "`m`, byte 49: 4611686018427387904 elements cannot be: the rest of the file has room for 2",
    );
    refused(
        &file(&[entry("a", 9, &array(8, 3, &[0; 16]))]),
        "`m`, byte 49: 3 texts cannot be: the rest of the file has room for 2",
    );
    refused(
        &file(&[entry(&"k".repeat(65_536), 7, &[1])]),
        "`m`, byte 24: 65536 bytes of a name, at most 65535 are read",
    );
}

#[test]
fn values_of_no_known_kind_are_refused() {
    refused(
        &file(&[entry("a", 13, &[0; 8])]),
        "`m`, byte 33: key `a` has a value of type 13, expected a type of 0 to 12",
    );
    refused(
        &file(&[entry("a", 9, &array(9, 0, &[]))]),
        "`m`, byte 37: key `a` is an array of arrays, which is not read",
    );
    refused(
        &file(&[entry("a", 7, &[2])]),
        "`m`, byte 37: key `a` has the truth value 2, expected 0 or 1",
    );
    refused(
        &file(&[entry("a", 7, &[1]), entry("a", 7, &[1])]),
        "`m`, byte 38: key `a` occurs twice",
    );
    refused(
        &file(&[entry("a\n", 7, &[1])]),
        "`m`, byte 24: a key is not printable UTF-8",
    );
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = good();
    for cut in 0..whole.len() {
        assert!(Metadata::read(Path::new("m"), &whole[..cut]).is_err());
    }
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(at in 0..good().len(), byte: u8) {
        let mut content = good();
        content[at] = byte;
        if let Ok(metadata) = Metadata::read(Path::new("m"), &content) {
            for key in metadata.keys() {
                let _ = (metadata.text(key), metadata.u64(key), metadata.f32s(key), metadata.i32s(key));
                let _ = metadata.strings(key).map(|texts| texts.map(Iterator::count));
            }
        }
    }
}
