//! Properties over random plans: writing, reading and writing again gives the same bytes.

use std::sync::LazyLock;

use heg_artifacts::{
    Bundle, Manifest, RecipeKey, Section, Store, computation_id, slice, write_bundle,
};
use heg_spec::NpuPlatform;
use proptest::prelude::*;

use crate::tiny::{self, Plan};

fn plans() -> impl Strategy<Value = Plan> {
    let dimensions = (
        1..4_u32,
        1..20_u32,
        1..4_u32,
        1..4_u32,
        1..5_u32,
        1..40_u32,
        1..50_u32,
    );
    let chunks = prop::collection::btree_set(1..2000_u32, 0..4);
    let texts = ("\\PC{1,12}", prop::option::of(any::<String>()));
    // Pages have four tokens each, and a state leaves room for one more.
    let states = (0..4_u32, 0..4_u32);
    (dimensions, chunks, texts, -1e30_f32..1e30, states).prop_map(
        |(dimensions, chunks, (name, text), embedding_scale, (first, second))| {
            let (layers, hidden, kv_heads, heads_per_kv, rotary, vocab, context_tokens) =
                dimensions;
            let chunk_tokens = chunks.into_iter().collect();
            let pages_max = (context_tokens - 1) / 4;
            let states = [("a", first.min(pages_max)), ("b", second.min(pages_max))];
            let states = states.into_iter().filter(|(_, pages)| *pages > 0).collect();
            Plan {
                name,
                layers,
                hidden,
                kv_heads,
                heads_per_kv,
                rotary,
                vocab,
                context_tokens,
                chunk_tokens,
                embedding_scale,
                text,
                states,
            }
        },
    )
}

fn write(manifest: &Manifest, store: &Store, folder: &std::path::Path) -> Vec<u8> {
    let path = folder.join("bundle.heg");
    write_bundle(&path, manifest, store, &|_| {}).unwrap();
    std::fs::read(path).unwrap()
}

/// Written once, since writing syncs.
static TINY: LazyLock<Vec<u8>> = LazyLock::new(|| tiny::bundle_bytes(&Plan::default()));

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn write_read_write_gives_equal_bytes(plan in plans()) {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (store, manifest) = tiny::stored(&plan, first.path());
        let bytes = write(&manifest, &store, first.path());
        let bundle = tiny::verify(&bytes).unwrap();
        prop_assert_eq!(bundle.manifest(), &slice(&manifest, Some(NpuPlatform::NPU3720)));
        // Neither states nor blobs change what programs compute.
        let bare = Plan { states: Vec::new(), ..plan };
        let (_, without) = tiny::stored(&bare, second.path());
        let computed = computation_id(&manifest).unwrap();
        prop_assert_eq!(computed, computation_id(&slice(&without, None)).unwrap());
        let copies = Store::open(second.path().join("store")).unwrap();
        for section in &manifest.sections {
            prop_assert_eq!(copies.put_bytes(bundle.section(section.id).unwrap()).unwrap(), *section);
        }
        prop_assert_eq!(write(bundle.manifest(), &copies, second.path()), bytes);
    }

    #[test]
    fn a_damaged_bundle_is_an_error(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let mut bytes = TINY.clone();
        let position = at.index(bytes.len());
        bytes[position] ^= flip;
        prop_assert!(tiny::verify(&bytes).is_err());
    }

    #[test]
    fn what_is_put_and_recorded_comes_back(contents in prop::collection::vec(any::<Vec<u8>>(), 0..6), step in ".*") {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let sections: Vec<Section> = contents.iter().map(|bytes| store.put_bytes(bytes).unwrap()).collect();
        let key = RecipeKey::of(&step, &contents);
        prop_assert_eq!(store.recall(&key).unwrap(), None);
        store.record(&key, &sections).unwrap();
        prop_assert_eq!(store.recall(&key).unwrap(), Some(sections.clone()));
        for (section, bytes) in sections.iter().zip(&contents) {
            prop_assert_eq!(&*store.map(section.id).unwrap(), &bytes[..]);
        }
    }

    #[test]
    fn foreign_bytes_are_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..9000), keep_magic in any::<bool>()) {
        if keep_magic && bytes.len() > 16 {
            bytes[..16].copy_from_slice(b"HEGBNDL\0\x01\0\0\0\0\x10\0\0");
        }
        prop_assert!(Bundle::from_bytes(&bytes).is_err());
        heg_artifacts::layout::reseal(&mut bytes);
        prop_assert!(Bundle::from_bytes(&bytes).is_err());
    }
}
