//! A look at a bundle before it is fetched: what it moves, and the bundle of empty weights that it can write.

use std::fs;

use heg_artifacts::Bundle;
use heg_ship::{CountedSource, Layout, Look, SliceWish, export_layout};

use crate::bundles::{Content, Device, Told, bundle, chain, id, name, open};
use crate::lying::{Liar, Twist};

#[test]
fn a_look_moves_documents_and_the_head_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let layout = folder.path().join("layout");
    export_layout(&layout, "v1", &[open(&one)], None, &Told::default()).unwrap();
    let device = Device::trusting();
    let chat = name("chat:v1");
    let layout = Layout::new(&layout);
    let source = CountedSource::new(&layout);
    let look = Look {
        store: Some(&device.store),
        trust: &device.trust,
        name: &chat,
        slice: SliceWish::Best(None),
        agrees: &|_| false,
    };
    let candidate = look.at(&source, "v1").unwrap();
    let whole: u64 = candidate
        .manifest()
        .sections
        .iter()
        .map(|it| it.bytes)
        .sum();
    let amounts = candidate.amounts;
    assert_eq!((amounts.bundle_bytes, amounts.here_bytes), (whole, 0));
    assert_eq!(candidate.offered, ["cpu"]);
    assert!(source.requests() <= 6, "{}", source.requests());
    assert!(source.bytes() < 60_000, "{}", source.bytes());
    assert_eq!(device.store.bundles().unwrap(), []);

    // With another template here, all but the template and the head's sections are.
    let other = Content {
        template: "{{ other }}".to_owned(),
        ..Content::default()
    };
    let two = bundle(folder.path(), "two", &other);
    device.import(&two, &name("two")).unwrap();
    let amounts = look.at(&source, "v1").unwrap().amounts;
    assert_eq!(
        amounts.fetch_bytes,
        Content::default().template.len() as u64
    );
}

#[test]
fn a_sketch_has_the_kernels_and_holes_for_weights() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let layout = folder.path().join("layout");
    export_layout(&layout, "v1", &[open(&one)], None, &Told::default()).unwrap();
    let device = Device::trusting();
    let chat = name("chat:v1");
    let layout = Layout::new(&layout);
    let source = CountedSource::new(&layout);
    let look = Look {
        store: None,
        trust: &device.trust,
        name: &chat,
        slice: SliceWish::Best(None),
        agrees: &|_| false,
    };
    let candidate = look.at(&source, "v1").unwrap();
    let path = folder.path().join("sketch.heg");
    candidate
        .write_sketch(&fs::File::create(&path).unwrap())
        .unwrap();
    assert!(source.bytes() < 200_000, "{}", source.bytes());
    let (sketch, whole) = (Bundle::open(&path).unwrap(), Bundle::open(&one).unwrap());
    assert_ne!(sketch.manifest_id(), id(&one));
    assert_eq!(sketch.manifest().kernels, whole.manifest().kernels);
    assert_eq!(sketch.manifest().known_answers, None);
    sketch.trust_sections();
    let bytes = |bundle: &Bundle, id| bundle.section(id).unwrap().to_vec();
    for variant in sketch.manifest().kernels.iter().flat_map(|it| &it.variants) {
        assert_eq!(bytes(&sketch, variant.ir), bytes(&whole, variant.ir));
    }
    let tokenizer = sketch.manifest().text.tokenizer.unwrap();
    assert!(bytes(&sketch, tokenizer).iter().all(|byte| *byte == 0));
}

/// Kernels that are not those of the manifest are refused before they are written.
#[test]
fn a_lie_about_kernels_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let layout = folder.path().join("layout");
    export_layout(&layout, "v1", &[open(&one)], None, &Told::default()).unwrap();
    let device = Device::trusting();
    // Documents and head come first.
    let liar = Liar::new(&layout, |asked| match asked.number {
        0..3 => Twist::Honest,
        _ => Twist::Flip(10),
    });
    let chat = liar.name("chat:v1");
    let registry = liar.registry(&chat, None);
    let look = Look {
        store: None,
        trust: &device.trust,
        name: &chat,
        slice: SliceWish::Best(None),
        agrees: &|_| false,
    };
    let candidate = look.at(&registry, "v1").unwrap();
    let path = folder.path().join("sketch.heg");
    let file = fs::File::create(&path).unwrap();
    let error = candidate.write_sketch(&file).unwrap_err();
    let found = chain(&error);
    assert!(
        found.contains("a section of part `text` differs from its name"),
        "{found}"
    );
    assert_eq!(file.metadata().unwrap().len(), 0);
}
