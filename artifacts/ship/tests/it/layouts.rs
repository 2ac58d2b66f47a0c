//! Bundles in OCI layouts, and as files: what is written comes back, and takes what moved of it.

use std::fs;
use std::path::Path;

use heg_ship::{Layout, SignedChange, SignedRelease, export_file, export_layout};

use crate::bundles::{Content, Device, Told, bundle, chain, name, noise, open};

fn export(folder: &Path, tag: &str, file: &Path) {
    export_layout(folder, tag, &[open(file)], None, &Told::default()).unwrap();
}

#[test]
fn layers_one_behind_the_other_are_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = bundle(folder.path(), "one", &Content::default());
    let layout = folder.path().join("layout");
    export(&layout, "v1", &file);
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
    let blob = |digest: &serde_json::Value| {
        let hex = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        fs::read(layout.join("blobs/sha256").join(hex)).unwrap()
    };
    let json = |bytes: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&bytes).unwrap();
    let tagged = json(blob(&index["manifests"][0]["digest"]));
    let manifest = json(blob(&tagged["manifests"][0]["digest"]));
    let mut whole = Vec::new();
    for layer in manifest["layers"].as_array().unwrap() {
        let bytes = blob(&layer["digest"]);
        assert_eq!(layer["size"], bytes.len());
        if layer["annotations"]["heg.part"].is_string() {
            whole.extend(bytes);
        }
    }
    assert!(whole == fs::read(&file).unwrap());
    insta::assert_snapshot!("manifest", shown(&manifest));
    // The same again gives the same digests, and other tags stay.
    export(&layout, "v2", &file);
    let again = Layout::new(&layout).index().unwrap().manifests;
    assert_eq!(again.len(), 2);
    assert_eq!(again[0].digest, again[1].digest);
}

/// The manifest without digests, which depend on the length of its own text.
fn shown(manifest: &serde_json::Value) -> String {
    let mut manifest = manifest.clone();
    let hide = |descriptor: &mut serde_json::Value| descriptor["digest"] = "sha256:…".into();
    hide(&mut manifest["config"]);
    manifest["layers"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(hide);
    manifest["annotations"]["heg.bundle"] = "…".into();
    serde_json::to_string_pretty(&manifest).unwrap()
}

/// Bytes that move for each kind of change: exact, since they depend on nothing but the format.
#[test]
fn what_moves_is_what_changed() {
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    let source = Layout::new(&layout);
    let device = Device::trusting();
    let chat = name("h.example/chat:stable");
    let base = Content::default();
    let mut block = base.clone();
    block.tokenizer[(1 << 20) + 5] ^= 1;
    let mut longer = block.clone();
    longer.tokenizer.extend(noise("more", 100_000));
    let steps = [
        ("first", base.clone()),
        (
            "template",
            Content {
                template: "{{ other }}".to_owned(),
                ..base.clone()
            },
        ),
        ("one block", block),
        ("longer", longer),
        ("back", base),
    ];
    let mut table = String::new();
    for (step, content) in steps {
        let file = bundle(folder.path(), "next", &content);
        export(&layout, "stable", &file);
        let pulled = device.pull(&source, &chat).unwrap().unwrap();
        device.has(&chat, &file);
        let head = pulled.amounts;
        table.push_str(&format!(
            "{step:<10} fetched {:>8} of {:>8}  requests {:>2}  parts {}\n",
            head.fetch_bytes,
            head.bundle_bytes,
            pulled.requests,
            pulled.changed_parts.join(", ")
        ));
        assert!(
            pulled.moved_bytes < head.fetch_bytes + 130_000,
            "{}",
            pulled.moved_bytes
        );
        assert!(device.pull(&source, &chat).unwrap().is_none(), "{step}");
    }
    insta::assert_snapshot!("moved", table);
}

#[test]
fn a_file_comes_back_as_it_was_with_its_statement() {
    let folder = tempfile::tempdir().unwrap();
    let file = bundle(folder.path(), "one", &Content::default());
    let copy = folder.path().join("copy.heg");
    let signed = SignedRelease {
        release: b"{}".to_vec(),
        signatures: vec![b"one".to_vec(), b"two".to_vec()],
        changes: vec![SignedChange {
            keys: b"[]".to_vec(),
            signatures: vec![b"three".to_vec()],
        }],
    };
    let device = Device::trusting();
    let pulled = device.import(&file, &name("one")).unwrap();
    let bundle = device.store.bundle(pulled.held.bundle).unwrap();
    export_file(&copy, &bundle, Some(&signed), &Told::default()).unwrap();
    assert!(fs::read(&copy).unwrap() == fs::read(&file).unwrap());
    assert_eq!(SignedRelease::beside(&copy).unwrap(), Some(signed));
    assert_eq!(SignedRelease::beside(&file).unwrap(), None);
}

#[test]
fn what_is_missing_or_nonsense_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = bundle(folder.path(), "one", &Content::default());
    let layout = folder.path().join("layout");
    export(&layout, "v1", &file);
    let device = Device::trusting();
    let pull = |tag: &str| {
        let name = name(&format!("chat:{tag}"));
        let refused = chain(&device.pull(&Layout::new(&layout), &name).unwrap_err());
        refused.replace(&folder.path().display().to_string(), "FOLDER")
    };
    let mut all = vec![pull("v2")];
    let digest = Layout::new(&layout).index().unwrap().manifests[0]
        .digest
        .to_string();
    let index = fs::read_to_string(layout.join("index.json")).unwrap();
    for (from, to) in [
        ("\"schemaVersion\":2", "\"schemaVersion\":1"),
        ("sha256:", "sha512:"),
        ("\"manifests\"", "\"other\""),
    ] {
        fs::write(layout.join("index.json"), index.replace(from, to)).unwrap();
        all.push(pull("v1"));
    }
    fs::write(layout.join("index.json"), index).unwrap();
    // The digest depends on every byte of the format.
    let hex = digest.strip_prefix("sha256:").unwrap();
    insta::assert_snapshot!("nonsense", all.join("\n").replace(hex, "DIGEST"));
    assert_eq!(device.files("names"), 0);
}
