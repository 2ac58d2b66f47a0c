//! Files that must be refused, each with its message to the user; and files that must not.
//!
//! The unit tests of `header.rs`, in a file of their own because of their length. At the end `check_header` is compared
//! with the `safetensors` crate, on valid and on mutated files. Folders are tested in `checkpoint_tests.rs`.

use std::path::Path;

use ::safetensors::{Dtype, SafeTensors};
use proptest::prelude::*;

use super::*;

/// A file of header length, header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// Two tensors of two numbers each.
fn good() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}}"#;
    file(header, &[1; 12])
}

fn refused(content: Vec<u8>) -> String {
    Checkpoint::from_bytes("w", content)
        .unwrap_err()
        .to_string()
}

fn check(tensors: &str, data_bytes: usize, expect: &str) {
    let error = refused(file(&format!("{{{tensors}}}"), &vec![0; data_bytes]));
    assert!(error.starts_with(expect), "{error}\nexpected: {expect}");
}

#[test]
fn shapes_are_compared_with_both_sides() {
    let checkpoint = Checkpoint::from_bytes("w", good()).unwrap();
    let error = checkpoint
        .tensor("b")
        .unwrap()
        .expect_shape(&[1, 2])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor `b` has shape [2, 1], expected [1, 2]"
    );
    let error = SourceTensor::from_bytes("t", SourceDtype::F32, vec![usize::MAX, 2], &[]);
    assert!(matches!(error, Err(IngestError::TensorBytes { .. })));
}

#[test]
fn a_file_cut_anywhere_is_truncated() {
    let whole = good();
    assert!(Checkpoint::from_bytes("w", whole.clone()).is_ok());
    for length in 0..whole.len() {
        let error = Checkpoint::from_bytes("w", whole[..length].to_vec()).unwrap_err();
        let IngestError::Truncated {
            found_bytes,
            expected_bytes,
            ..
        } = error
        else {
            panic!("{length}: {error}");
        };
        assert_eq!(found_bytes, length as u64);
        assert!(expected_bytes > found_bytes);
    }
}

#[test]
fn tensors_cover_the_file_once() {
    let a = r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
    let b = |from: usize, to: usize| {
        let elements = to - from;
        format!(r#"{a},"b":{{"dtype":"U8","shape":[{elements}],"data_offsets":[{from},{to}]}}"#)
    };
    check(&b(3, 7), 7, "tensors `a` and `b` overlap in `w`");
    check(&b(0, 4), 4, "tensors `a` and `b` overlap in `w`");
    check(
        &b(5, 7),
        7,
        "tensor `b` in `w` leaves a hole before it: starts at 5, expected 4",
    );
    check(
        &b(4, 7),
        9,
        "`w` has bytes that belong to no tensor at its end: found ",
    );
    check(&b(4, 7), 6, "`w` is truncated: found ");
    let empty = r#""e":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}"#;
    let header = format!("{{{empty},{}}}", b(4, 7));
    assert!(Checkpoint::from_bytes("w", file(&header, &[0; 7])).is_ok());
}

#[test]
fn absurd_tensors_are_refused() {
    let tensor = |dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#""t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    check(
        &tensor("F32", "[4294967296,4294967296]", 0, 8),
        8,
        "tensor `t` in `w` has shape [4294967296, 4294967296] of F32, which is no possible number of bytes",
    );
    check(
        &tensor("F32", "[4611686018427387904]", 0, 0),
        0,
        "tensor `t` in `w` has shape",
    );
    check(
        &tensor("F4", "[3]", 0, 2),
        2,
        "tensor `t` in `w` has shape [3] of F4",
    );
    check(
        &tensor("F32", "[2]", 0, 7),
        7,
        "tensor `t` in `w` has 7 bytes, expected 8 from shape and type",
    );
    check(
        &tensor("U8", "[2]", 4, 2),
        4,
        "tensor `t` in `w` ends before it starts: 4 to 2",
    );
    // Each offset alone is possible; its sum with the header's length is not.
    let most = u64::MAX / 8;
    let tensors = (0..8).map(|n| {
        let (from, to) = (n * most, (n + 1) * most);
        format!(r#""{n}":{{"dtype":"U8","shape":[{most}],"data_offsets":[{from},{to}]}}"#)
    });
    let tensors: Vec<_> = tensors.collect();
    check(&tensors.join(","), 0, "`w` is truncated: found ");
    check(
        &tensor("F33", "[2]", 0, 8),
        8,
        "header of `w`: unknown variant `F33`",
    );
    check(
        &tensor("F32", "[-1]", 0, 8),
        8,
        "header of `w`: invalid value: integer `-1`",
    );
}

#[test]
fn headers_that_are_none_are_refused() {
    assert_eq!(
        refused(u64::MAX.to_le_bytes().to_vec()),
        "header of `w` is too long: found 18446744073709551615 bytes, at most 33554432 are read"
    );
    assert!(refused(file("[]", &[])).starts_with("header of `w`: invalid type: sequence"));
    assert!(refused(file("{} x", &[])).starts_with("header of `w`: trailing characters"));
    assert!(refused(file("\u{0}", &[])).starts_with("header of `w`: expected value"));
    assert!(refused(file(r#"{"__metadata__":{"a":1}}"#, &[])).starts_with("header of `w`: "));
    let u8_at =
        |name: &str| format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#);
    let twice = format!("{},{}", u8_at("t"), u8_at("t"));
    check(&twice, 1, "header of `w`: tensor `t` occurs twice");
    let control = "header of `w`: a tensor name is too long or holds control characters";
    check(&u8_at("a\\u001b[31m"), 1, control);
    check(&u8_at(&"x".repeat(1025)), 1, control);
    assert!(Checkpoint::from_bytes("w", file("{}  ", &[])).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// A file accepted here is accepted by the crate with the same tensors; any other is an error, not a panic.
    #[test]
    fn mutated_files_are_judged_as_by_the_crate(
        mutations in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        digits in any::<bool>(),
    ) {
        let mut content = good();
        for (place, byte) in mutations {
            let place = place.index(content.len());
            content[place] = match digits {
                true => b'0' + byte % 10,
                false => byte,
            };
        }
        let ours = check_header(Path::new("w"), &content);
        let theirs = SafeTensors::read_metadata(&content);
        if let Ok(entries) = ours {
            let (header_bytes, theirs) = theirs.unwrap();
            prop_assert_eq!(entries.len(), theirs.tensors().len());
            for (name, entry) in entries {
                let info = theirs.info(&name).unwrap();
                prop_assert_eq!(entry.dtype, info.dtype);
                prop_assert_eq!(&entry.shape, &info.shape);
                prop_assert_eq!(entry.bytes.start, header_bytes + 8 + info.data_offsets.0);
                prop_assert_eq!(entry.bytes.end, header_bytes + 8 + info.data_offsets.1);
            }
        }
    }

    /// Files written by the crate are read, tensor by tensor.
    #[test]
    fn written_files_are_read(lengths in proptest::collection::vec(0_usize..9, 0..6)) {
        let data: Vec<Vec<u8>> = lengths.iter().map(|n| vec![*n as u8; n * 4]).collect();
        let views = lengths.iter().zip(&data).enumerate().map(|(index, (length, bytes))| {
            let view = ::safetensors::tensor::TensorView::new(Dtype::F32, vec![*length], bytes);
            (format!("t{index}"), view.unwrap())
        });
        let content = ::safetensors::serialize(views, None).unwrap();
        let checkpoint = Checkpoint::from_bytes("w", content).unwrap();
        for (index, bytes) in data.iter().enumerate() {
            let tensor = checkpoint.tensor(&format!("t{index}"));
            prop_assert_eq!(tensor.unwrap().bytes(), bytes.as_slice());
        }
    }
}
