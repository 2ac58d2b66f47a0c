//! Writing and reading back: bytes, progress, targets left alone, and leftovers.

use std::cell::RefCell;
use std::fs;
use std::num::NonZero;
use std::path::Path;

use heg_artifacts::{
    Bundle, Error, Reference, Section, SectionId, Store, references, slice, with_state,
    write_amended, write_bundle,
};
use heg_spec::NpuPlatform;

use crate::tiny::{self, Plan};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_written_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let (store, manifest) = tiny::stored(&Plan::default(), folder.path());
    let path = folder.path().join("tiny.heg");
    let progress = RefCell::new(Vec::new());
    let written = write_bundle(&path, &manifest, &store, &|bytes| {
        progress.borrow_mut().push(bytes)
    })
    .unwrap();
    assert!(written.rewritten);
    assert_eq!(written.bytes, fs::metadata(&path).unwrap().len());
    let progress = progress.into_inner();
    assert!(progress.is_sorted());
    assert_eq!(progress.last(), Some(&written.bytes));

    let bundle = Bundle::open(&path).unwrap();
    let sorted = slice(&manifest, Some(NpuPlatform::NPU3720));
    assert_eq!(*bundle.manifest(), sorted);
    assert_ne!(sorted.sections, manifest.sections);
    assert_eq!(bundle.manifest_id(), written.manifest_id);
    bundle.verify(NonZero::new(3).unwrap()).unwrap();
    for section in &manifest.sections {
        let bytes = bundle.section(section.id).unwrap();
        assert_eq!(SectionId::of(bytes), section.id);
        assert_eq!(bytes, bundle.section_unverified(section.id).unwrap());
        assert!(bytes.as_ptr().addr().is_multiple_of(4096));
        let range = bundle.section_range(section.id).unwrap();
        assert_eq!(range.end - range.start, section.bytes);
        assert_eq!(
            &bundle.mapping()[range.start as usize..range.end as usize],
            bytes
        );
        bundle.mapping().give_back(range).unwrap();
        assert_eq!(bundle.section(section.id).unwrap(), bytes);
    }
}

#[test]
fn a_bundle_is_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Bundle>();
    is_shared::<Store>();
}

#[test]
fn the_same_bundle_is_left_alone_and_another_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut manifest) = tiny::stored(&Plan::default(), folder.path());
    let path = folder.path().join("tiny.heg");
    let first = write_bundle(&path, &manifest, &store, &|_| {}).unwrap();
    let second = write_bundle(&path, &manifest, &store, &|_| {}).unwrap();
    assert!(!second.rewritten);
    assert_eq!(
        (first.bytes, first.manifest_id),
        (second.bytes, second.manifest_id)
    );

    let open = Bundle::open(&path).unwrap();
    manifest.model.name = "other".to_owned();
    assert!(
        write_bundle(&path, &manifest, &store, &|_| {})
            .unwrap()
            .rewritten
    );
    assert_eq!(open.manifest().model.name, "tiny");
    open.verify(NonZero::<usize>::MIN).unwrap();
    assert_eq!(Bundle::open(&path).unwrap().manifest().model.name, "other");

    fs::write(&path, b"something else").unwrap();
    assert!(
        write_bundle(&path, &manifest, &store, &|_| {})
            .unwrap()
            .rewritten
    );
    assert_eq!(names(folder.path()), ["store", "tiny.heg"]);
}

#[test]
fn failures_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (store, manifest) = tiny::stored(&Plan::default(), folder.path());
    let path = folder.path().join("tiny.heg");
    let object = |id: SectionId| {
        folder
            .path()
            .join("store/blake3")
            .join(&id.to_string()[..2])
            .join(id.to_string())
    };
    let values = manifest.weights[0].values;

    fs::write(object(values), b"short").unwrap();
    let error = write_bundle(&path, &manifest, &store, &|_| {})
        .unwrap_err()
        .to_string();
    let label = format!(
        "section `{}` (weight `model.embed_tokens.weight` values)",
        values.short()
    );
    assert_eq!(
        error,
        format!("the store holds `5` bytes as {label}, expected `256`")
    );

    fs::remove_file(object(values)).unwrap();
    let error = write_bundle(&path, &manifest, &store, &|_| {}).unwrap_err();
    assert!(matches!(error, Error::NoSuchSection { id, place: "store" } if id == values));
    assert_eq!(
        error.to_string(),
        format!("there is no section `{values}` in the store")
    );
    assert_eq!(names(folder.path()), ["store"]);

    // An object that shrinks while it is copied, found by the count of copied bytes.
    let (store, manifest) = tiny::stored(&Plan::default(), folder.path());
    let shrink = |_| fs::write(object(values), b"shrunk").unwrap();
    let error = write_bundle(&path, &manifest, &store, &shrink).unwrap_err();
    assert!(
        matches!(
            error,
            Error::ObjectLength {
                expected: 256,
                found: 6,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(names(folder.path()), ["store"]);

    // Objects that changed without a change of length: all of them are discarded, the first is named.
    let (store, manifest) = tiny::stored(&Plan::default(), folder.path());
    let scales = manifest.weights.iter().find_map(|weight| weight.scales);
    let changed = [values, scales.unwrap()];
    for id in changed {
        let mut bytes = fs::read(object(id)).unwrap();
        bytes[0] ^= 1;
        fs::write(object(id), bytes).unwrap();
    }
    let error = write_bundle(&path, &manifest, &store, &|_| {}).unwrap_err();
    assert!(matches!(error, Error::ObjectChanged { .. }), "{error}");
    assert!(changed.iter().all(|id| !store.contains(*id).unwrap()));
    assert_eq!(names(folder.path()), ["store"]);

    // A target that cannot be replaced, found at the rename, when everything is written.
    let (store, manifest) = tiny::stored(&Plan::default(), folder.path());
    fs::create_dir(&path).unwrap();
    let error = write_bundle(&path, &manifest, &store, &|_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot create `{}`", path.display())
    );
    assert!(std::error::Error::source(&error).is_some());
    assert_eq!(names(folder.path()), ["store", "tiny.heg"]);
    assert!(names(&folder.path().join("store/tmp")).is_empty());
}

#[test]
fn what_a_killed_writer_left_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (store, manifest) = tiny::stored(&Plan::default(), folder.path());
    // Above the largest process id of Linux (2^22).
    fs::write(folder.path().join(".tiny.heg.tmp-4194305-0"), b"half").unwrap();
    fs::write(folder.path().join(".other.heg.tmp-4194305-0"), b"half").unwrap();
    write_bundle(&folder.path().join("tiny.heg"), &manifest, &store, &|_| {}).unwrap();
    assert_eq!(
        names(folder.path()),
        [".other.heg.tmp-4194305-0", "store", "tiny.heg"]
    );
}

#[test]
fn a_bundle_without_a_section_says_so() {
    let bundle = tiny::verify(&tiny::bundle_bytes(&Plan::default())).unwrap();
    let id = SectionId::of(b"not there");
    let expected = format!("there is no section `{id}` in the bundle");
    assert_eq!(bundle.section(id).unwrap_err().to_string(), expected);
    assert_eq!(
        bundle.section_unverified(id).unwrap_err().to_string(),
        expected
    );
    assert_eq!(bundle.section_range(id).unwrap_err().to_string(), expected);
    assert_eq!(bundle.label(id), "nothing refers to it");
}

#[test]
fn sections_have_names_for_people() {
    let folder = tempfile::tempdir().unwrap();
    let (_, manifest) = tiny::stored(
        &Plan {
            chunk_tokens: vec![4],
            layers: 1,
            ..Plan::default()
        },
        folder.path(),
    );
    let lines: Vec<_> = references(&manifest)
        .into_iter()
        .map(|(reference, _)| format!("{reference}: {}", reference.label(&manifest)))
        .collect();
    assert_eq!(
        lines[..12],
        [
            "text.tokenizer: tokenizer",
            "text.chat_template: chat template",
            "rope[0].cos: rope table `0` cosines",
            "rope[0].sin: rope table `0` sines",
            "weights[0].values: weight `model.embed_tokens.weight` values",
            "weights[1].values: weight `model.layers.0.q_proj` values",
            "weights[1].scales: weight `model.layers.0.q_proj` scales",
            "weights[1].centres: weight `model.layers.0.q_proj` centres",
            "weights[2].values: weight `model.layers.0.norm` values",
            "weights[3].values: weight `lm_head.norm` values",
            "literals: literals of the kernels",
            "kernels[0].variants[0].ir: kernel `qkv` IR for cpu, dynamic",
        ]
    );
    assert_eq!(
        lines[12..19],
        [
            "kernels[0].variants[0].program: kernel `qkv` program for cpu, dynamic",
            "kernels[0].variants[1].ir: kernel `qkv` IR for npu, static 4",
            "kernels[0].variants[1].blobs[0].section: \
             kernel `qkv` blob (platform 3720) for npu, static 4",
            "kernels[1].variants[0].ir: kernel `mha` IR for cpu, dynamic",
            "kernels[1].variants[0].program: kernel `mha` program for cpu, dynamic",
            "kernels[1].variants[1].ir: kernel `mha` IR for npu, static 4 over 32",
            "kernels[1].variants[1].blobs[0].section: \
             kernel `mha` blob (platform 3720) for npu, static 4 over 32",
        ]
    );
    assert_eq!(
        lines[lines.len() - 5..],
        [
            "layers[0].qkv.answer: known answer of `qkv` in layer 0",
            "layers[0].mha.answer: known answer of `mha` in layer 0",
            "layers[0].ffn.answer: known answer of `ffn` in layer 0",
            "head.answer: known answer of the head",
            "annotations: annotations",
        ]
    );
    let mut shared = manifest.clone();
    shared.partitions = shared.annotations;
    let last = references(&shared).pop().map(|(reference, _)| reference);
    assert_eq!(last, Some(Reference::Partitions));
    assert_eq!(Reference::Partitions.to_string(), "partitions");
    assert_eq!(Reference::Partitions.label(&shared), "partitions");
    assert_eq!(
        Reference::VariantIr(0, 9).label(&manifest),
        "kernel `qkv` variant `9` IR"
    );
    assert_eq!(Reference::VariantIr(9, 9).label(&manifest), "kernel `9` IR");
    assert_eq!(
        Reference::WeightValues(9).label(&manifest),
        "weight `?` values"
    );
}

/// States that are baked one after the other give the bundle that has them from the start; a name is baked again in place
/// of the one before, and no section of that stays.
#[test]
fn states_are_added_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let with = |states: Vec<(&'static str, u32)>| Plan {
        states,
        ..Plan::default()
    };
    let path = folder.path().join("bundle.heg");
    let plain = tiny::bundle_bytes(&Plan::default());
    fs::write(&path, &plain).unwrap();
    let steps = [
        (vec![("mail", 3)], "mail"),
        (vec![("mail", 3), ("a", 2)], "a"),
        (vec![("mail", 1), ("a", 2)], "mail"),
    ];
    for (mut states, name) in steps {
        states.sort_unstable();
        let expected = tiny::bundle_bytes(&with(states));
        let wanted = Bundle::from_bytes(&expected).unwrap();
        let state = wanted.manifest().states.iter();
        let state = state.clone().find(|state| state.name == name).unwrap();
        let of_state = [state.beginning].into_iter().chain(state.pages.clone());
        let new: Vec<Vec<u8>> = of_state
            .map(|id| wanted.section(id).unwrap().to_vec())
            .collect();
        let sections: Vec<Section> = new
            .iter()
            .map(|bytes| Section {
                id: SectionId::of(bytes),
                bytes: bytes.len() as u64,
            })
            .collect();
        let before = Bundle::open(&path).unwrap();
        let manifest = with_state(before.manifest(), state.clone(), &sections);
        for rewritten in [true, false] {
            let written = write_amended(&path, &manifest, &before, &new, &|_| ()).unwrap();
            assert_eq!(written.rewritten, rewritten);
            assert_eq!(written.manifest_id, wanted.manifest_id());
        }
        assert!(fs::read(&path).unwrap() == expected, "{name}");
        let without = write_amended(&path, &manifest, &before, &[], &|_| ());
        assert!(without.is_ok(), "it is there already");
    }
    // Where a section is missing, nothing is left of the file.
    let bundle = Bundle::from_bytes(&plain).unwrap();
    let states = Bundle::open(&path).unwrap();
    let other = folder.path().join("other.heg");
    let missing = write_amended(&other, states.manifest(), &bundle, &[], &|_| ());
    assert!(matches!(missing, Err(Error::NoSuchSection { .. })));
    assert_eq!(names(folder.path()), ["bundle.heg"]);
}
