//! Tests of `heg inspect --kernels`, as people see it, on tiny bundles.

use std::path::Path;

use crate::command::heg;
use crate::tiny::{TINY, annotations, write_tiny};

/// Runs `heg inspect BUNDLE --kernels …`; returns its output for a person.
fn inspect(folder: &Path, bundle: &str, arguments: &[&str]) -> String {
    heg(
        folder,
        &[&["inspect", bundle, "--kernels"], arguments].concat(),
    )
}

#[test]
fn annotated() {
    let folder = tempfile::tempdir().unwrap();
    write_tiny(folder.path(), "annotated.heg", Some(&annotations()));
    let inspect = |arguments: &[&str]| inspect(folder.path(), "annotated.heg", arguments);
    insta::assert_snapshot!("kernels", inspect(&[]));
    let decode = ["--tokens", "1", "--context", "20", "--batch", "3"];
    insta::assert_snapshot!("kernels_decode", inspect(&decode));
    let other = ["--soc", "core-ultra-7-258v"];
    insta::assert_snapshot!("kernels_other_machine", inspect(&other));
    let json = inspect(&["--json", "--tokens", "4"]);
    assert!(json.contains("\"origin\": \"bundle\""), "{json}");
    let json = json.split("--- stdout\n").nth(1).unwrap();
    let json = json.split("--- stderr\n").next().unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let first_npu = &json["kernels"][0];
    insta::assert_snapshot!(
        "kernels_json",
        serde_json::to_string_pretty(first_npu).unwrap()
    );
}

#[test]
fn not_annotated() {
    let folder = tempfile::tempdir().unwrap();
    write_tiny(folder.path(), "plain.heg", None);
    let inspect = |arguments: &[&str]| inspect(folder.path(), "plain.heg", arguments);
    insta::assert_snapshot!("kernels_data_sheet", inspect(&[]));
    insta::assert_snapshot!("kernels_unknown", inspect(&["--soc", "host-cpu"]));
}

#[test]
fn mistakes() {
    let folder = tempfile::tempdir().unwrap();
    write_tiny(folder.path(), "plain.heg", None);
    let mistakes = [
        inspect(folder.path(), "plain.heg", &["--soc", "core-ultra"]),
        inspect(folder.path(), "plain.heg", &["--tokens", "0"]),
        // The bundle of the format's tests has noise in this section.
        inspect(folder.path(), TINY, &[]),
    ];
    insta::assert_snapshot!("kernels_mistakes", mistakes.join("\n"));
}
