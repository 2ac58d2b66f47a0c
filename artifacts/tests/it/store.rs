//! The store from outside: objects, recipes, crashes and threads.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use heg_artifacts::{Error, RecipeKey, Section, SectionId, Store, StoreKey, StoreSharing};

use crate::tiny::noise;

fn object(folder: &Path, id: SectionId) -> PathBuf {
    let name = id.to_string();
    folder.join("blake3").join(&name[..2]).join(&name)
}

fn is_empty(folder: PathBuf) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn objects_are_found_by_their_content() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    for bytes in [&b""[..], b"heg", &noise("large", 1_000_000)] {
        let id = SectionId::of(bytes);
        assert!(!store.contains(id).unwrap());
        let section = store.put_bytes(bytes).unwrap();
        assert_eq!(
            section,
            Section {
                id,
                bytes: bytes.len() as u64
            }
        );
        assert_eq!(store.put_bytes(bytes).unwrap(), section);
        assert!(store.contains(id).unwrap());
        assert_eq!(store.section(id).unwrap(), section);
        assert_eq!(*store.map(id).unwrap(), *bytes);
        assert_eq!(
            std::io::read_to_string(store.file(id).unwrap())
                .unwrap_or_default()
                .len()
                == 3,
            bytes == b"heg"
        );
        store.check(id).unwrap();
        assert_eq!(fs::read(object(folder.path(), id)).unwrap(), bytes);
    }
    assert!(is_empty(folder.path().join("tmp")));
}

#[test]
fn streams_of_any_grain_have_the_name_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let bytes = noise("grain", 700_001);
    for grain in [1, 2, 4095, 262_143, 262_144, 262_145, 700_001] {
        let section = store.put(|sink| -> Result<(), Error> {
            for piece in bytes.chunks(grain) {
                sink.push(piece)?;
            }
            assert_eq!(sink.bytes(), 700_001);
            Ok(())
        });
        assert_eq!(
            section.unwrap(),
            Section {
                id: SectionId::of(&bytes),
                bytes: 700_001
            }
        );
    }
    let section = store.put(|sink| -> Result<(), Error> {
        sink.write_all(&bytes[..10]).unwrap();
        assert_eq!(sink.write(&bytes[10..]).unwrap(), bytes.len() - 10);
        sink.flush().unwrap();
        Ok(())
    });
    assert_eq!(section.unwrap().id, SectionId::of(&bytes));
    store.check(SectionId::of(&bytes)).unwrap();
}

#[test]
fn a_failed_put_leaves_nothing() {
    #[derive(Debug)]
    enum Failure {
        Mine,
        Store,
    }
    impl From<Error> for Failure {
        fn from(_: Error) -> Self {
            Self::Store
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let failed = store.put(|sink| {
        sink.push(&[0; 1 << 20])?;
        Err(Failure::Mine)
    });
    assert!(matches!(failed, Err(Failure::Mine)));
    assert!(is_empty(folder.path().join("tmp")) && is_empty(folder.path().join("blake3")));
    fs::remove_dir(folder.path().join("tmp")).unwrap();
    assert!(matches!(store.put(|_| Ok(())), Err(Failure::Store)));
    let error = store.put_bytes(b"x").unwrap_err().to_string();
    let expected = folder.path().join(format!("tmp/{}-", std::process::id()));
    assert!(
        error.starts_with(&format!("cannot create `{}", expected.display())),
        "{error}"
    );
}

#[test]
fn damaged_objects_are_noticed_and_cured() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let section = store.put_bytes(b"heg").unwrap();
    fs::write(object(folder.path(), section.id), b"hex").unwrap();
    let error = store.check(section.id).unwrap_err().to_string();
    let (short, found) = (section.id.short(), SectionId::of(b"hex"));
    let expected = format!(
        "the store's object for section `{short}` (an object of the store) has changed: its blake3 is `{found}`, \
         expected `{}`; it has to be made again",
        section.id
    );
    assert_eq!(error, expected);
    assert!(store.map(section.id).is_err());
    assert_eq!(*store.map_unverified(section.id).unwrap(), *b"hex");
    store.discard(section.id).unwrap();
    assert!(!store.contains(section.id).unwrap());
    store.discard(section.id).unwrap();
    store.put_bytes(b"heg").unwrap();
    store.check(section.id).unwrap();
}

#[test]
fn recipes_are_recalled_while_their_objects_last() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let key = RecipeKey::of("quantise 1", ["weights"]);
    assert_eq!(store.recall(&key).unwrap(), None);
    let sections = [
        store.put_bytes(b"values").unwrap(),
        store.put_bytes(b"scales").unwrap(),
    ];
    store.record(&key, &sections).unwrap();
    assert_eq!(store.recall(&key).unwrap().as_deref(), Some(&sections[..]));
    assert_eq!(
        Store::open(folder.path())
            .unwrap()
            .recall(&key)
            .unwrap()
            .as_deref(),
        Some(&sections[..])
    );
    assert_eq!(
        store
            .recall(&RecipeKey::of("quantise 2", ["weights"]))
            .unwrap(),
        None
    );

    fs::write(object(folder.path(), sections[1].id), b"scale").unwrap();
    assert_eq!(store.recall(&key).unwrap(), None);
    fs::remove_file(object(folder.path(), sections[1].id)).unwrap();
    assert_eq!(store.recall(&key).unwrap(), None);
    store.put_bytes(b"scales").unwrap();
    assert!(store.recall(&key).unwrap().is_some());

    store.record(&key, &sections[..1]).unwrap();
    assert_eq!(store.recall(&key).unwrap().as_deref(), Some(&sections[..1]));
    let name = key.to_string();
    let recipe = folder.path().join("recipes").join(&name[..2]).join(&name);
    fs::write(recipe, b"").unwrap();
    assert_eq!(store.recall(&key).unwrap(), None);
}

/// Machines that share a folder take recipes of each other, and none of anybody else who can write there.
#[test]
fn recipes_of_a_shared_folder_are_those_of_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let open = |secret: Option<&str>| {
        let key = secret.map(|secret| StoreKey::of(secret.as_bytes()));
        let sharing = key.map_or(StoreSharing::Nobody, StoreSharing::Folder);
        Store::open(folder.path()).unwrap().shared(sharing)
    };
    let (farm, stranger, nobody) = (open(Some("farm")), open(Some("stranger")), open(None));
    let step = RecipeKey::of("quantise 1", ["weights"]);
    let right = [farm.put_bytes(b"values").unwrap()];
    let wrong = [stranger.put_bytes(b"other values").unwrap()];
    farm.record(&step, &right).unwrap();
    let recalled = |store: &Store| store.recall(&step).unwrap();
    assert_eq!(recalled(&open(Some("farm"))).as_deref(), Some(&right[..]));
    assert_eq!((recalled(&stranger), recalled(&nobody)), (None, None));
    for other in [&stranger, &nobody] {
        other.record(&step, &wrong).unwrap();
        assert_eq!(recalled(&farm), None);
        assert_eq!(recalled(other).as_deref(), Some(&wrong[..]));
    }
    // A recipe of the farm for another step, copied to this one's place.
    let second = RecipeKey::of("quantise 2", ["weights"]);
    farm.record(&second, &wrong).unwrap();
    let path = |key: &RecipeKey| {
        let name = key.to_string();
        folder.path().join("recipes").join(&name[..2]).join(&name)
    };
    fs::copy(path(&second), path(&step)).unwrap();
    assert_eq!(recalled(&farm), None);
}

#[test]
fn opening_removes_what_dead_processes_left_and_nothing_of_the_living() {
    let folder = tempfile::tempdir().unwrap();
    Store::open(folder.path()).unwrap();
    // Above the largest process id of Linux (2^22).
    fs::write(folder.path().join("tmp/4194305-3"), b"half").unwrap();
    // Written by a process of another container, whose number means nothing here; its lock is what counts.
    let alive = folder.path().join("tmp/4194306-3");
    let file = fs::File::create(&alive).unwrap();
    file.lock().unwrap();
    Store::open(folder.path()).unwrap();
    let names: Vec<_> = fs::read_dir(folder.path().join("tmp"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(names, [alive]);
}

#[test]
fn many_threads_may_put_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let stores = [
        Store::open(folder.path()).unwrap(),
        Store::open(folder.path()).unwrap(),
    ];
    let key = RecipeKey::of("step", [""; 0]);
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let store = &stores[thread % 2];
            scope.spawn(move || {
                for round in 0..40_u64 {
                    let bytes = noise(&format!("{}", round % 5), 10_000 * (round % 5));
                    let section = store.put_bytes(&bytes).unwrap();
                    assert_eq!(*store.map(section.id).unwrap(), *bytes);
                    store.record(&key, &[section]).unwrap();
                    assert_eq!(store.recall(&key).unwrap().unwrap().len(), 1);
                }
            });
        }
    });
    assert!(is_empty(folder.path().join("tmp")));
}

#[test]
fn what_is_not_there_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let id = SectionId::of(b"not there");
    let errors = [
        store.section(id).unwrap_err(),
        store.map(id).unwrap_err(),
        store.check(id).unwrap_err(),
        store.file(id).unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(error, Error::NoSuchSection { place: "store", .. }),
            "{error}"
        );
    }
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = Store::open(&file).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("cannot create `{}`", file.join("blake3").display())
    );
}
