//! Tests of `heg inspect --partition`, as people see it, on the tiny bundle with the partition of a larger model.

use std::path::Path;
use std::process::Command;

use crate::command::heg;
use crate::tiny::TINY;
use heg_artifacts::{Bundle, Store, write_bundle};
use heg_profiler::partition::{CutShape, PairModel, Partitions, partition};
use heg_spec::{CutProduct, shipped};

/// Returns a document for the down projection and the head of a small model on the paper's machine.
fn document() -> String {
    let soc = shipped::soc("snapdragon-8-gen3").unwrap();
    let shape = |product, rows: u32, depth: u32| CutShape {
        product,
        rows,
        depth,
        matrices: 1,
        unit_rows: 1,
        row_bytes: f64::from(depth),
    };
    let shapes = [
        shape(CutProduct::Down, 2048, 8192),
        shape(CutProduct::Head, 32_000, 2048),
    ];
    let rates = PairModel::of(&soc).unwrap();
    let pair = soc.pair.as_ref().unwrap();
    let found = partition(&soc.name, pair, &rates, &shapes, 320).unwrap();
    Partitions::new(vec![found]).to_text().unwrap()
}

/// Writes `name`: the tiny bundle with this text as its partitions.
fn write(folder: &Path, name: &str, text: &str) {
    let tiny = Bundle::open(TINY).unwrap();
    let mut manifest = tiny.manifest().clone();
    // The section has noise, for which a page would be refused.
    let noise = manifest.annotations.take();
    manifest
        .sections
        .retain(|section| Some(section.id) != noise);
    let store = Store::open(folder.join("store")).unwrap();
    for section in &manifest.sections {
        store.put_bytes(tiny.section(section.id).unwrap()).unwrap();
    }
    let section = store.put_bytes(text.as_bytes()).unwrap();
    manifest.partitions = Some(section.id);
    manifest.sections.push(section);
    write_bundle(&folder.join(name), &manifest, &store, &|_| ()).unwrap();
}

/// Runs `heg inspect BUNDLE --partition …`; returns its output for a person.
fn inspect(folder: &Path, bundle: &str, arguments: &[&str]) -> String {
    heg(
        folder,
        &[&["inspect", bundle, "--partition"], arguments].concat(),
    )
}

#[test]
fn partitions() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shared.heg", &document());
    let inspect = |arguments: &[&str]| inspect(folder.path(), "shared.heg", arguments);
    insta::assert_snapshot!("partition", inspect(&[]));
    let json = inspect(&["--json"]);
    assert!(json.contains("\"product\": \"Down\""), "{json}");
    let drawn = Command::new(env!("CARGO_BIN_EXE_heg"))
        .args(["inspect", "shared.heg", "--html", "page.html"])
        .current_dir(folder.path())
        .status();
    assert!(drawn.unwrap().success());
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("id=\"shares\"") && page.contains("snapdragon-8-gen3"));
}

#[test]
fn mistakes() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "wrong.heg",
        &document().replacen("row_step:256", "row_step:250", 1),
    );
    write(
        folder.path(),
        "newer.heg",
        &document().replacen("revision:1", "revision:9", 1),
    );
    let mistakes = [
        inspect(folder.path(), TINY, &[]),
        inspect(folder.path(), TINY, &["--kernels"]),
        inspect(folder.path(), "wrong.heg", &[]),
        inspect(folder.path(), "newer.heg", &[]),
    ];
    insta::assert_snapshot!("partition_mistakes", mistakes.join("\n"));
}
