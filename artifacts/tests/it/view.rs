//! Views: parts of a folder, mapped side by side, are the bundle.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use heg_artifacts::{Bundle, BundleHead, Error, Mapping, View, maps_parts};

use crate::tiny::{self, Plan};

/// Writes the parts of a bundle and its view below `store`, as a store has them. Returns the view's path.
fn lay_out(store: &Path, file: &[u8]) -> PathBuf {
    let bundle = Bundle::from_bytes(file).unwrap();
    let parts = BundleHead::of_bundle(&bundle).unwrap().parts();
    for part in &parts {
        let path = part.id.path_in(&store.join("parts"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let range = part.range.start as usize..part.range.end as usize;
        fs::write(path, &file[range]).unwrap();
    }
    let view = View::of(&parts).unwrap();
    assert_eq!(view.file_bytes(), file.len() as u64);
    let path = store.join("views").join(bundle.manifest_id().to_string());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, view.to_text()).unwrap();
    path
}

/// A store of two bundles, which differ in their template.
fn two() -> (tempfile::TempDir, [(PathBuf, Vec<u8>); 2]) {
    let store = tempfile::tempdir().unwrap();
    let other = Plan {
        text: Some("{{ other }}".to_owned()),
        ..Plan::default()
    };
    let both = [Plan::default(), other].map(|plan| {
        let file = tiny::bundle_bytes(&plan);
        (lay_out(store.path(), &file), file)
    });
    (store, both)
}

#[test]
fn a_view_is_the_file() {
    if !maps_parts() {
        return;
    }
    let (store, both) = two();
    let threads = NonZero::<usize>::MIN;
    for (view, file) in &both {
        let bundle = Bundle::open(view).unwrap();
        assert_eq!(**bundle.mapping(), **file);
        bundle.verify(threads).unwrap();
        for range in [0..u64::MAX, 4097..12289, 5..5, u64::MAX - 1..u64::MAX] {
            bundle.mapping().will_need(range.clone()).unwrap();
            bundle.mapping().give_back(range).unwrap();
        }
        bundle.mapping().will_read_in_order();
        assert_eq!(**bundle.mapping(), **file);
    }
    let count = |[(view, _), _]: &[(PathBuf, Vec<u8>); 2]| {
        let view = View::parse(&fs::read(view).unwrap()).unwrap();
        view.parts().len()
    };
    let files = fs::read_dir(store.path().join("parts")).unwrap();
    let files = files.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    // Shared but for the heads and the templates.
    assert_eq!(files.count(), count(&both) + 2);
    let [(first, _), (second, _)] = both.map(|(view, file)| (Mapping::open(&view).unwrap(), file));
    let shared = |mapping: &Mapping| mapping.identities().unwrap().pop();
    assert_eq!(shared(&first), shared(&second));
}

#[test]
fn a_part_that_is_missing_short_or_written_to_is_named() {
    if !maps_parts() {
        return;
    }
    let (_store, [(path, file), _]) = two();
    let view = View::parse(&fs::read(&path).unwrap()).unwrap();
    let parts = path.parent().unwrap().parent().unwrap().join("parts");
    let last = view.parts().last().unwrap();
    let part = last.id.path_in(&parts);

    let open = Mapping::open(&path).unwrap();
    let handle = fs::File::options().write(true).open(&part).unwrap();
    handle.set_modified(std::time::UNIX_EPOCH).unwrap();
    let checks = view.parts().iter().map(|_| open.check_unchanged());
    let changed: Vec<_> = checks.filter_map(Result::err).collect();
    assert!(
        matches!(&changed[..], [Error::Changed { path, .. }] if *path == part),
        "one check in turn finds it: {changed:?}"
    );

    handle.set_len(last.bytes + 4096).unwrap();
    let refused = Bundle::open(&path).unwrap_err();
    assert!(
        matches!(&refused, Error::PartLength { path, .. } if *path == part),
        "{refused}"
    );
    fs::remove_file(&part).unwrap();
    let refused = Bundle::open(&path).unwrap_err();
    assert!(
        matches!(&refused, Error::Io { path, .. } if *path == part),
        "{refused}"
    );
    assert_eq!(*open, *file, "what is mapped lives on");
}

/// Parts of another bundle, though each is whole, are another file: opening notices.
#[test]
fn a_mixed_view_is_no_bundle() {
    if !maps_parts() {
        return;
    }
    let (_store, [(first, _), (second, _)]) = two();
    let [one, other] = [&first, &second].map(|path| fs::read_to_string(path).unwrap());
    let mut lines: Vec<&str> = one.lines().collect();
    // The head of the one over all else of the other: its sections have other lengths or hashes.
    let others: Vec<&str> = other.lines().collect();
    lines[2] = others[2];
    fs::write(&first, format!("{}\n", lines.join("\n"))).unwrap();
    let opened = Bundle::open(&first);
    let verified = opened.and_then(|bundle| bundle.verify(NonZero::<usize>::MIN));
    let error = verified.unwrap_err().to_string();
    assert!(
        error.contains("text.chat_template")
            || error.contains("truncated")
            || error.contains("corrupt"),
        "{error}"
    );
}
