//! Bytes that an edit of a compiled bundle moves: exact, since they depend on nothing but the model and the format.

use std::path::Path;

use heg_artifacts::manifest::Manifest;
use heg_artifacts::{Bundle, Store};
use heg_files::OwnFolder;
use heg_runtime::verified::trust_if_verified;
use heg_ship::DeviceStore;
use heg_tests::{Workbench, fixture};
use serde_json::Value;

use crate::registry::{heg_with_store, registry_or_skip};
use crate::update::altered;

/// Changes every row of a layer's `down`, as training it on would.
fn other_tensor(manifest: &mut Manifest, bundle: &Bundle, store: &Store) {
    let mut weights = manifest.weights.iter();
    let down = weights.find(|weight| weight.name.contains("down_proj"));
    let id = down.unwrap().values;
    let bytes = bundle.section(id).unwrap();
    let changed: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
    let section = store.put_bytes(&changed).unwrap();
    manifest.sections.retain(|section| section.id != id);
    manifest.sections.push(section);
    for weight in &mut manifest.weights {
        if weight.values == id {
            weight.values = section.id;
        }
    }
}

fn other_template(manifest: &mut Manifest, bundle: &Bundle, store: &Store) {
    let id = manifest.text.chat_template.unwrap();
    let mut text = bundle.section(id).unwrap().to_vec();
    text.extend(b"{# edited #}");
    let section = store.put_bytes(&text).unwrap();
    manifest.sections.retain(|section| section.id != id);
    manifest.sections.push(section);
    manifest.text.chat_template = Some(section.id);
}

#[test]
fn an_edit_moves_what_it_changed() {
    let test = "an_edit_moves_what_it_changed";
    let folder = tempfile::tempdir().unwrap();
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let folder = folder.path();
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let first = compiled.unwrap().0;
    let template = altered(&first, &folder.join("template.heg"), other_template);
    let tensor = altered(&template, &folder.join("tensor.heg"), other_tensor);
    let name = format!("{}/acme/chat:stable", docker.host);
    let json = |arguments: &[&str]| -> Vec<Value> {
        let output = heg_with_store(folder).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    };
    let mut table = String::new();
    for (edit, bundle) in [
        ("first", &first),
        ("template", &template),
        ("down", &tensor),
    ] {
        json(&["push", bundle.to_str().unwrap(), &name, "--json"]);
        let told = json(&["pull", &name, "--allow-unsigned", "--json"]);
        let (planned, pulled) = (&told[0], &told[told.len() - 1]);
        let fetched = planned["fetch_bytes"].as_u64().unwrap();
        let moved = pulled["moved_bytes"].as_u64().unwrap();
        // Index, manifest, head, list of blocks, and the padding of sections.
        assert!(moved - fetched < 350_000, "{edit}: {moved}, {fetched}");
        println!("{edit}: {moved} bytes moved, {fetched} of them of sections");
        if edit != "first" {
            table.push_str(&format!(
                "{edit}: {fetched} bytes, {} requests, parts {}\n",
                pulled["requests"], pulled["changed_parts"]
            ));
        }
    }
    insta::assert_snapshot!("moved", table);
    nothing_is_left_to_hash(folder, &name);
}

/// The first start hashes nothing that the pull has hashed, until somebody touches a part.
fn nothing_is_left_to_hash(folder: &Path, name: &str) {
    let store = DeviceStore::open(&folder.join("store")).unwrap();
    let held = store.name(&name.parse().unwrap()).unwrap().unwrap().now;
    let cache = OwnFolder::create(&folder.join("cache")).unwrap();
    let is_known = || trust_if_verified(&store.bundle(held.bundle).unwrap(), &cache);
    assert!(is_known());
    let view = store.view(held.bundle).unwrap().unwrap();
    let largest = view.parts().iter().max_by_key(|part| part.bytes).unwrap();
    let part = largest.id.path_in(&store.path().join("parts"));
    let whole = std::fs::read(&part).unwrap();
    std::fs::remove_file(&part).unwrap();
    std::fs::write(&part, whole).unwrap();
    assert!(!is_known(), "another file with the same bytes is hashed");
}
