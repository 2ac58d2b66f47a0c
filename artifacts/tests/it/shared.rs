//! Stores whose machines share a place behind their folders.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use heg_artifacts::{
    Error, RecipeKey, Section, SectionId, SharedPlace, Store, StoreKey, StoreSharing,
};
use tempfile::TempDir;

/// A place in memory.
#[derive(Debug, Default)]
struct Place {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Files that cannot be sent, by the start of their names.
    full_for: Mutex<Option<&'static str>>,
    /// Files whose fetching is cut off after three bytes, by the start of their names.
    cut_for: Mutex<Option<&'static str>>,
}

impl Place {
    /// Changes the files whose names begin in this way.
    fn change(&self, beginning: &str, change: impl Fn(&mut Vec<u8>)) {
        let mut files = self.files.lock().unwrap();
        let mut changed = 0;
        for (_, bytes) in files
            .iter_mut()
            .filter(|(name, _)| name.starts_with(beginning))
        {
            change(bytes);
            changed += 1;
        }
        assert!(changed > 0);
    }

    fn names(&self, beginning: &str) -> Vec<String> {
        let files = self.files.lock().unwrap();
        let names = files.keys().filter(|name| name.starts_with(beginning));
        names.cloned().collect()
    }
}

impl SharedPlace for Place {
    fn label(&self) -> &str {
        "s3://farm/heg"
    }

    fn length(&self, name: &str) -> io::Result<Option<u64>> {
        let files = self.files.lock().unwrap();
        Ok(files.get(name).map(|bytes| bytes.len() as u64))
    }

    fn fetch(&self, name: &str, bytes: u64, to: &mut dyn Write) -> io::Result<()> {
        let files = self.files.lock().unwrap();
        let all = files.get(name).ok_or(ErrorKind::NotFound)?;
        let wanted = &all[..bytes as usize];
        let cut_for = *self.cut_for.lock().unwrap();
        if cut_for.is_some_and(|beginning| name.starts_with(beginning)) {
            to.write_all(&wanted[..3])?;
            return Err(ErrorKind::ConnectionReset.into());
        }
        to.write_all(wanted)
    }

    fn send(&self, name: &str, from: &Path) -> io::Result<()> {
        let full_for = *self.full_for.lock().unwrap();
        if full_for.is_some_and(|beginning| name.starts_with(beginning)) {
            return Err(ErrorKind::StorageFull.into());
        }
        let bytes = fs::read(from)?;
        self.files.lock().unwrap().insert(name.to_owned(), bytes);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.lock().unwrap().remove(name);
        Ok(())
    }
}

/// A machine with a folder of its own.
struct Machine {
    folder: TempDir,
    store: Store,
}

fn machine(place: &Arc<Place>, secret: &str) -> Machine {
    let folder = tempfile::tempdir().unwrap();
    let place: Arc<dyn SharedPlace> = place.clone();
    let sharing = StoreSharing::Place(StoreKey::of(secret.as_bytes()), place);
    let store = Store::open(folder.path()).unwrap().shared(sharing);
    Machine { folder, store }
}

impl Machine {
    /// Makes two sections and records them.
    fn make(&self) -> Result<Vec<Section>, Error> {
        let sections = [b"values".as_slice(), b"scales"].map(|bytes| self.store.put_bytes(bytes));
        let sections: Vec<Section> = sections.into_iter().collect::<Result<_, _>>()?;
        self.store.record(&step(), &sections)?;
        Ok(sections)
    }

    fn recalled(&self) -> Option<Vec<Section>> {
        let recalled = self.store.recall(&step()).unwrap();
        let unfinished = fs::read_dir(self.folder.path().join("tmp")).unwrap();
        assert_eq!(unfinished.count(), 0);
        recalled
    }
}

fn step() -> RecipeKey {
    RecipeKey::of("quantise 1", ["weights"])
}

#[test]
fn one_machine_makes_it_and_the_others_fetch_it() {
    let place = Arc::new(Place::default());
    let [first, second] = [(); 2].map(|()| machine(&place, "farm"));
    assert_eq!(second.recalled(), None);
    let made = first.make().unwrap();
    assert_eq!(second.recalled().as_ref(), Some(&made));
    for section in made {
        let (here, there) = (first.store.map(section.id), second.store.map(section.id));
        assert_eq!(*here.unwrap(), *there.unwrap());
    }
    assert_eq!(place.names("").len(), 3);
    assert_eq!(machine(&place, "stranger").recalled(), None);
}

#[test]
fn what_a_folder_has_is_not_fetched() {
    let place = Arc::new(Place::default());
    let [first, second] = [(); 2].map(|()| machine(&place, "farm"));
    let made = first.make().unwrap();
    assert_eq!(second.recalled().as_ref(), Some(&made));
    place.files.lock().unwrap().clear();
    assert_eq!(first.recalled().as_ref(), Some(&made));
    assert_eq!(second.recalled(), Some(made));
}

/// A change of a file.
type Attack = fn(&mut Vec<u8>);

/// Somebody without the key writes into the place: no machine believes it, and what was damaged is made and sent again.
#[test]
fn nothing_that_is_fetched_is_believed() {
    let attacks: [(&str, Attack); 6] = [
        ("blake3/", |bytes| bytes[0] ^= 1),
        ("blake3/", |bytes| bytes.push(0)),
        ("blake3/", |bytes| bytes.clear()),
        ("recipes/", |bytes| bytes[20] ^= 1),
        ("recipes/", |bytes| bytes.resize(2 << 20, b'a')),
        ("recipes/", |bytes| {
            *bytes = b"heg recipe 1\n".to_vec();
            let hash = SectionId::of(bytes);
            bytes.extend_from_slice(format!("{hash}\n").as_bytes());
        }),
    ];
    for (at, (beginning, attack)) in attacks.into_iter().enumerate() {
        let place = Arc::new(Place::default());
        let made = machine(&place, "farm").make().unwrap();
        place.change(beginning, attack);
        let second = machine(&place, "farm");
        assert_eq!(second.recalled(), None, "{at}");
        second.make().unwrap();
        assert_eq!(machine(&place, "farm").recalled(), Some(made), "{at}");
    }
}

#[test]
fn a_failed_sending_is_repeated_by_the_next_try() {
    for beginning in ["blake3/", "recipes/"] {
        let place = Arc::new(Place::default());
        let [first, second] = [(); 2].map(|()| machine(&place, "farm"));
        *place.full_for.lock().unwrap() = Some(beginning);
        let error = first.make().unwrap_err();
        assert!(
            matches!(&error, Error::SharedPlace { action: "send", .. }),
            "{error}"
        );
        assert_eq!((first.recalled(), second.recalled()), (None, None));
        *place.full_for.lock().unwrap() = None;
        let made = first.make().unwrap();
        assert_eq!(second.recalled(), Some(made));
    }
}

#[test]
fn a_fetch_that_is_cut_off_is_an_error_and_leaves_nothing() {
    let place = Arc::new(Place::default());
    let made = machine(&place, "farm").make().unwrap();
    let second = machine(&place, "farm");
    // A recipe that came whole is kept, and not fetched again.
    for beginning in ["recipes/", "blake3/"] {
        *place.cut_for.lock().unwrap() = Some(beginning);
        let error = second.store.recall(&step()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cannot fetch `") && text.ends_with("of `s3://farm/heg`"),
            "{text}"
        );
    }
    *place.cut_for.lock().unwrap() = None;
    assert_eq!(second.recalled(), Some(made));
}
