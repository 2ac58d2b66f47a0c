//! A look at a bundle before it is fetched: what it moves, and the bundle of empty weights that it can write.

use std::fs;

use heg_artifacts::Bundle;
use heg_ship::{CountedSource, DeviceStore, Layout, Look, ModelName, SliceWish};

use crate::bundles::{Content, Device, bundle, chain, id, name};
use crate::lying::Twist;
use crate::world::World;

/// A look by a device that takes what nobody signed.
fn look<'l>(device: &'l Device, store: Option<&'l DeviceStore>, name: &'l ModelName) -> Look<'l> {
    Look {
        store,
        trust: &device.trust,
        name,
        slice: SliceWish::Best(None),
        agrees: &|_| false,
    }
}

#[test]
fn a_look_moves_documents_and_the_head_and_changes_nothing() {
    let world = World::new();
    let device = Device::trusting();
    let chat = name("chat:v1");
    let layout = Layout::new(&world.layout());
    let source = CountedSource::new(&layout);
    let look = look(&device, Some(&device.store), &chat);
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
    let two = bundle(world.folder.path(), "two", &other);
    device.import(&two, &name("two")).unwrap();
    let amounts = look.at(&source, "v1").unwrap().amounts;
    assert_eq!(
        amounts.fetch_bytes,
        Content::default().template.len() as u64
    );
}

#[test]
fn a_sketch_has_the_kernels_and_holes_for_weights() {
    let world = World::new();
    let device = Device::trusting();
    let chat = name("chat:v1");
    let layout = Layout::new(&world.layout());
    let source = CountedSource::new(&layout);
    let look = look(&device, None, &chat);
    let candidate = look.at(&source, "v1").unwrap();
    let path = world.folder.path().join("sketch.heg");
    candidate
        .write_sketch(&fs::File::create(&path).unwrap())
        .unwrap();
    assert!(source.bytes() < 200_000, "{}", source.bytes());
    let (sketch, whole) = (
        Bundle::open(&path).unwrap(),
        Bundle::open(&world.file).unwrap(),
    );
    assert_ne!(sketch.manifest_id(), id(&world.file));
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
    let world = World::new();
    let device = Device::trusting();
    // Documents and head come first.
    let liar = world.liar(|asked| match asked.number {
        0..3 => Twist::Honest,
        _ => Twist::Flip(10),
    });
    let chat = liar.name("chat:v1");
    let registry = liar.registry(&chat, None);
    let look = look(&device, None, &chat);
    let candidate = look.at(&registry, "v1").unwrap();
    let path = world.folder.path().join("sketch.heg");
    let file = fs::File::create(&path).unwrap();
    let error = candidate.write_sketch(&file).unwrap_err();
    let found = chain(&error);
    assert!(
        found.contains("a section of part `text` differs from its name"),
        "{found}"
    );
    assert_eq!(file.metadata().unwrap().len(), 0);
}
