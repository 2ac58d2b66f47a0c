//! `heg inspect --kernels` as people see it: on the tiny bundle of the format's tests, with the work of a larger
//! model, and the annotations of the papers' machine, in place of the noise that it carries.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::path::Path;
use std::process::Command;

use heg_artifacts::manifest::{Group, NpuPlatform, Term, Work};
use heg_artifacts::{Bundle, Manifest, Store, write_bundle};
use heg_profiler::annotation::{BlobKey, SweepLimits, VendorTable, VendorTables, annotate};
use heg_spec::shipped;

const TINY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../artifacts/testdata/v1/tiny.heg"
);

/// Exit status, standard output and standard error of `heg inspect BUNDLE --kernels …`, as one text.
fn inspect(folder: &Path, bundle: &str, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_heg"))
        .args(["inspect", bundle, "--kernels"])
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    format!(
        "exit status {}\n--- stdout\n{}--- stderr\n{}",
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap()
    )
}

/// The tiny bundle's manifest with kernels that have work to do: 10 MB of weights, or attention of 8 heads.
fn manifest(tiny: &Bundle) -> Manifest {
    let term = |factor, tokens, context| Term {
        factor,
        tokens,
        context,
    };
    let mut manifest = tiny.manifest().clone();
    for kernel in &mut manifest.kernels {
        kernel.work = match kernel.group {
            Group::Mha => Work {
                flops: vec![term(2080, 1, 1)],
                bytes: vec![term(4096, 1, 0), term(2048, 0, 1)],
            },
            Group::Qkv | Group::Ffn | Group::Head => Work {
                flops: vec![term(20_000_000, 1, 0)],
                bytes: vec![term(10_000_000, 0, 0), term(12_000, 1, 0)],
            },
        };
    }
    manifest
}

/// A vendor's table for each NPU variant: 100 µs and more for the larger ones, at 1300 MHz.
fn tables(manifest: &Manifest) -> VendorTables {
    let mut tables = VendorTables::new();
    for (kernel, found) in manifest.kernels.iter().enumerate() {
        for (variant, found) in found.variants.iter().enumerate() {
            let Some(chunk) = found.shape.chunk() else {
                continue;
            };
            let latency_us = 100.0 + 5.0 * f64::from(chunk) + 10.0 * kernel as f64;
            let table = [(700, latency_us * 2.0), (1300, latency_us)];
            let key = BlobKey {
                kernel,
                variant,
                platform: NpuPlatform(3720),
            };
            tables.insert(key, VendorTable::new(table.to_vec()).unwrap());
        }
    }
    tables
}

/// Writes `name` into the folder: the tiny bundle with other annotations, or none.
fn write_tiny(folder: &Path, name: &str, annotations: Option<&str>) {
    let tiny = Bundle::open(TINY).unwrap();
    let store = Store::open(folder.join("store")).unwrap();
    let mut manifest = manifest(&tiny);
    let noise = manifest.annotations.take();
    manifest
        .sections
        .retain(|section| Some(section.id) != noise);
    for section in &manifest.sections {
        store.put_bytes(tiny.section(section.id).unwrap()).unwrap();
    }
    if let Some(text) = annotations {
        let section = store.put_bytes(text.as_bytes()).unwrap();
        manifest.annotations = Some(section.id);
        manifest.sections.push(section);
    }
    write_bundle(&folder.join(name), &manifest, &store, &|_| ()).unwrap();
}

fn annotations() -> String {
    let manifest = manifest(&Bundle::open(TINY).unwrap());
    let soc = shipped::soc("core-ultra-5-125h").unwrap();
    let tables = tables(&manifest);
    let annotations = annotate(&manifest, &[soc], &tables, SweepLimits::default());
    annotations.unwrap().to_text().unwrap()
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
