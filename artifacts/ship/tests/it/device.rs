//! The store of a device: what is shared, what is kept, what is removed.

use std::fs;

use heg_artifacts::View;

use crate::bundles::{Content, Device, bundle, chain, id, name};

fn other_template() -> Content {
    Content {
        template: "{{ other }}".to_owned(),
        ..Content::default()
    }
}

#[test]
fn two_bundles_share_all_parts_but_those_that_differ() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let two = bundle(folder.path(), "two", &other_template());
    let device = Device::trusting();
    let first = device.import(&one, &name("one")).unwrap();
    let parts = device.files("parts");
    assert_eq!(first.changed_parts.len(), parts);
    let second = device.import(&two, &name("two")).unwrap();
    assert_eq!(second.changed_parts, ["head", "text"]);
    assert_eq!(device.files("parts"), parts + 2);
    device.has(&name("one"), &one);
    device.has(&name("two"), &two);
    assert_eq!(device.files("tmp"), 0);
}

/// Bytes of memory that files below a folder take in this process, each page counted once however often it is mapped.
#[cfg(target_os = "linux")]
fn resident_bytes(folder: &std::path::Path) -> u64 {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut bytes, mut is_there) = (0, false);
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            is_there = line.contains(folder.to_str().unwrap());
        } else if is_there && first == "Pss:" {
            let kilobytes = line.split_whitespace().nth(1).unwrap();
            bytes += kilobytes.parse::<u64>().unwrap() * 1024;
        }
    }
    bytes
}

/// Two models that share weights take the memory of one, and of what differs.
#[cfg(target_os = "linux")]
#[test]
fn two_bundles_that_share_weights_share_memory() {
    if !heg_artifacts::maps_parts() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = Device::trusting();
    let read = |name: &str, content: &Content| {
        let file = bundle(folder.path(), name, content);
        let imported = device.import(&file, &crate::bundles::name(name)).unwrap();
        let bundle = device.store.bundle(imported.held.bundle).unwrap();
        // Each page is read, as a run would.
        bundle.verify(std::num::NonZero::<usize>::MIN).unwrap();
        bundle
    };
    let path = device.store.path().to_owned();
    let first = read("one", &Content::default());
    let of_one = resident_bytes(&path);
    let whole = first.mapping().len() as u64;
    assert!(of_one > whole - 100_000, "{of_one} of {whole}");
    let second = read("two", &other_template());
    let more = resident_bytes(&path) - of_one;
    assert!(more < 200_000, "{more} bytes more, of {whole}");
    let other = Content {
        tokenizer: crate::bundles::noise("other", (3 << 20) + 12_345),
        ..Content::default()
    };
    let third = read("three", &other);
    let more = resident_bytes(&path) - of_one;
    assert!(more > 3 << 20, "what differs is not shared: {more}");
    drop((first, second, third));
}

/// A part that somebody wrote to is not taken for what it was.
#[test]
fn a_part_that_changed_is_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let two = bundle(folder.path(), "two", &other_template());
    let device = Device::trusting();
    let first = device.import(&one, &name("one")).unwrap();
    let view = device.store.view(first.held.bundle).unwrap().unwrap();
    let largest = view.parts().iter().max_by_key(|part| part.bytes).unwrap();
    let path = largest.id.path_in(&device.store.path().join("parts"));
    let mut bytes = fs::read(&path).unwrap();
    bytes[100_000] ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    let second = device.import(&two, &name("two")).unwrap();
    assert_eq!(second.changed_parts, ["head", "text", "tokenizer"]);
    device.has(&name("two"), &two);
    device.has(&name("one"), &one);
}

/// A store that was copied has other times: its parts are hashed, noted and used.
#[test]
fn a_part_with_other_times_is_hashed_and_not_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let two = bundle(folder.path(), "two", &other_template());
    let device = Device::trusting();
    let first = device.import(&one, &name("one")).unwrap();
    let view = device.store.view(first.held.bundle).unwrap().unwrap();
    for part in view.parts() {
        let path = part.id.path_in(&device.store.path().join("parts"));
        fs::copy(&path, path.with_extension("copy")).unwrap();
        fs::rename(path.with_extension("copy"), path).unwrap();
    }
    let second = device.import(&two, &name("two")).unwrap();
    assert_eq!(second.changed_parts, ["head", "text"]);
    device.has(&name("two"), &two);
}

#[test]
fn a_name_goes_back_and_what_no_name_needs_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let contents = ["a", "b", "c"].map(|template| Content {
        template: template.to_owned(),
        ..Content::default()
    });
    let files: Vec<_> = contents
        .iter()
        .map(|content| bundle(folder.path(), &content.template, content))
        .collect();
    let device = Device::trusting();
    let chat = name("chat");
    for file in &files {
        device.import(file, &chat).unwrap();
    }
    device.has(&chat, &files[2]);
    let garbage = device.store.garbage().unwrap();
    assert_eq!(garbage.bundles, [id(&files[0])], "the one before is kept");
    assert!(garbage.bytes > 0);
    let pruned = device.store.prune(&|| ()).unwrap();
    assert_eq!(pruned, garbage);
    assert_eq!(device.store.garbage().unwrap().bytes, 0);
    assert_eq!(device.files("notes"), device.files("parts"));

    device.store.roll_back(&chat).unwrap();
    device.has(&chat, &files[1]);
    device.store.roll_back(&chat).unwrap();
    device.has(&chat, &files[2]);
    device.store.forget(&chat).unwrap();
    let error = device.store.meant("chat").unwrap_err();
    assert_eq!(
        error.to_string(),
        "`chat` is not in the store: `heg pull chat` fetches it, `heg list` shows what is here"
    );
    device.store.prune(&|| ()).unwrap();
    let left = ["parts", "notes", "views", "tmp"].map(|folder| device.files(folder));
    assert_eq!(left, [0; 4]);
    let error = device.store.roll_back(&chat).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("`chat:latest` is not in the store"),
        "{error}"
    );
}

/// Pruning reads every name and view first: what it cannot read is an error, not garbage.
#[test]
fn nothing_is_removed_while_a_name_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let device = Device::trusting();
    device.import(&one, &name("one")).unwrap();
    let record = device.store.path().join("names/one%3Alatest.json");
    let text = fs::read_to_string(&record).unwrap();
    let parts = device.files("parts");
    for wrong in [
        "{",
        &text.replace("name/1", "name/2"),
        &text.replace("one:latest", "two:latest"),
    ] {
        fs::write(&record, wrong).unwrap();
        let error = chain(&device.store.prune(&|| ()).unwrap_err());
        assert!(error.starts_with("the name at `"), "{error}");
        assert_eq!(device.files("parts"), parts);
    }
    fs::write(&record, text).unwrap();
    device.has(&name("one"), &one);
}

#[test]
fn a_short_name_is_one_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let device = Device::trusting();
    for whole in [
        "h.example/a/chat:1",
        "h.example/b/chat:1",
        "h.example/b/coder:1",
    ] {
        device.import(&one, &name(whole)).unwrap();
    }
    let meant = |short: &str| device.store.meant(short).map(|(name, _)| name.to_string());
    assert_eq!(meant("coder").unwrap(), "h.example/b/coder:1");
    assert_eq!(meant("a/chat:1").unwrap(), "h.example/a/chat:1");
    assert_eq!(
        meant("chat").unwrap_err().to_string(),
        "`chat` may be any of `h.example/a/chat:1`, `h.example/b/chat:1`: give the whole name"
    );
    assert!(meant("chat:2").is_err() && meant("../chat").is_err());
}

#[test]
fn a_bundle_is_opened_by_its_view() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let device = Device::trusting();
    let pulled = device.import(&one, &name("one")).unwrap();
    let path = device.store.bundle_path(pulled.held.bundle).unwrap();
    if heg_artifacts::maps_parts() {
        let view = View::parse(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(view.file_bytes(), pulled.held.bytes);
    }
    assert_eq!(device.store.bundle_path(id(&one)), Some(path));
}
