//! Bundles that differ in their baked states: states move, and nothing else does.

use std::path::Path;

use heg_artifacts::manifest::{BakedState, ElementType, Manifest, STATE_HEAD_BYTES, StateForm};
use heg_artifacts::{Bundle, Section, SectionId, with_state, write_amended};
use heg_ship::{Layout, export_layout};
use heg_spec::Activations;

use crate::bundles::{Content, Device, Told, bundle, name, noise, open};

/// Tokens of a page, as the tiny model's context has room for.
const PAGE_TOKENS: u32 = 4;

/// Bakes a state of pages that are noise into a bundle; `seeds` name the pages.
fn bake(file: &Path, state: &str, seeds: &[&str]) {
    let bundle = open(file);
    let manifest: &Manifest = bundle.manifest();
    let model = &manifest.model;
    let row = u64::from(model.kv_heads * model.head_dim) * 2;
    let rows = 2 * manifest.layers.len() as u64 * u64::from(PAGE_TOKENS) * row;
    let page = |seed: &&str| noise(seed, (STATE_HEAD_BYTES + rows) as usize);
    let beginning = format!("{{\"messages\":[],\"of\":\"{state}\"}}").into_bytes();
    let pages: Vec<Vec<u8>> = seeds.iter().map(page).collect();
    let baked = BakedState {
        name: state.to_owned(),
        beginning: SectionId::of(&beginning),
        form: StateForm {
            arithmetic: 1,
            activations: Activations::I8,
            kv_cache: ElementType::Bf16,
        },
        page_tokens: PAGE_TOKENS,
        tokens: vec![1; PAGE_TOKENS as usize * pages.len()],
        pages: pages.iter().map(|page| SectionId::of(page)).collect(),
    };
    let new: Vec<Vec<u8>> = [beginning].into_iter().chain(pages).collect();
    let section = |bytes: &Vec<u8>| Section {
        id: SectionId::of(bytes),
        bytes: bytes.len() as u64,
    };
    let sections: Vec<Section> = new.iter().map(section).collect();
    let manifest = with_state(manifest, baked, &sections);
    write_amended(file, &manifest, &bundle, &new, &|_| ()).unwrap();
}

/// Bytes that move with each state: exact, since they depend on nothing but the format.
#[test]
fn a_state_moves_alone() {
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    let source = Layout::new(&layout);
    let device = Device::trusting();
    let chat = name("h.example/chat:stable");
    let file = bundle(folder.path(), "next", &Content::default());
    let steps: [(&str, &str, &[&str]); 5] = [
        ("first", "", &[]),
        ("mail", "mail", &["a", "b", "c"]),
        ("longer mail", "mail", &["a", "b", "c", "d"]),
        ("notes beside it", "notes", &["a", "e"]),
        ("other mail", "mail", &["f"]),
    ];
    let mut table = String::new();
    for (step, state, seeds) in steps {
        if !seeds.is_empty() {
            bake(&file, state, seeds);
        }
        let told = Told::default();
        let pushed = export_layout(&layout, "stable", &[open(&file)], None, &told).unwrap();
        let pulled = device.pull(&source, &chat).unwrap().unwrap();
        device.has(&chat, &file);
        let parts = Bundle::open(&file).unwrap();
        let head = heg_artifacts::BundleHead::of_bundle(&parts).unwrap();
        let head_bytes = head.parts()[0].range.end;
        // Parts are sent whole; what says what they are depends on hashes, and is small.
        let parts_sent = pushed.moved_bytes / 4096 - head_bytes / 4096;
        table.push_str(&format!(
            "{step:<16} sent {parts_sent:>4} pages beside the head, fetched {:>8} of {:>8}, parts {}\n",
            pulled.amounts.fetch_bytes,
            pulled.amounts.bundle_bytes,
            pulled.changed_parts.join(", ")
        ));
        assert!(device.pull(&source, &chat).unwrap().is_none(), "{step}");
    }
    insta::assert_snapshot!("states moved", table);
}
