//! The build cache: sections in a folder, named by their content.
//!
//! ```text
//! <store>/blake3/ab/abcdef…    one object: the bytes of a section, nothing else
//! <store>/recipes/12/1234ab…   the resulting sections of a step, by a hash of its inputs
//! <store>/tmp/<pid>-<n>        unfinished objects and recipes, locked by the process that writes them
//! ```
//!
//! **Durability.** An object gets its name by a rename after its last byte was written, so a killed process
//! leaves temporary files and nothing else. Objects are not synced to disk one by one: after a power cut
//! the usual file systems (ext4, xfs, btrfs) show such a file with fewer bytes, which every use of the
//! store notices by its length; a file system that shows the right length over wrong bytes is noticed when the
//! object is used ([`Store::map`], [`crate::write_bundle`]), and cured by discarding the object and putting the
//! section again. Bundles themselves are synced.
//!
//! All methods take `&self` and may be called from many threads and processes at once.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use heg_files::{TempFile, remove_stale};

use crate::content_id::SectionId;
use crate::error::{BundlePart, Error};
use crate::manifest::Section;
use crate::mapping::Mapping;
use crate::recipe::{self, RecipeKey, Seal, StoreKey};
use crate::sink::SectionSink;

/// A folder of sections.
#[derive(Debug)]
pub struct Store {
    objects: PathBuf,
    recipes: PathBuf,
    temporary: PathBuf,
    secret: Option<StoreKey>,
}

impl Store {
    /// Opens the store in `folder`, creates it if absent, and removes the leftovers of interrupted runs.
    ///
    /// Errors: [`Error::Io`] if folders cannot be created or listed.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let store = Self {
            objects: folder.join("blake3"),
            recipes: folder.join("recipes"),
            temporary: folder.join("tmp"),
            secret: None,
        };
        for folder in [&store.objects, &store.recipes, &store.temporary] {
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        remove_stale(&store.temporary, "")?;
        Ok(store)
    }

    /// Takes recipes that were written with this secret, and no others: those of other people who can write to the folder
    /// count as absent.
    pub fn with_key(self, secret: Option<StoreKey>) -> Self {
        Self { secret, ..self }
    }

    /// Streams a new section into the store: `fill` writes it, in constant memory. Returns the section's name and
    /// length. If the store has such an object already, the new one replaces it.
    ///
    /// When `fill` fails its error is returned and the store is as before. A closure that uses `?` on
    /// errors of this crate needs its return type spelt out: `|sink| -> Result<(), Error> { … }`.
    ///
    /// Errors: those of `fill`; [`Error::Io`], typically a full disk.
    pub fn put<E: From<Error>>(
        &self,
        fill: impl FnOnce(&mut SectionSink) -> Result<(), E>,
    ) -> Result<Section, E> {
        let temp = TempFile::create(&self.temporary, "").map_err(Error::from)?;
        let mut sink = SectionSink::new(temp);
        fill(&mut sink)?;
        let (section, temp) = sink.finish()?;
        rename_into_shard(temp, &self.object(section.id))?;
        Ok(section)
    }

    /// Stores bytes that are in memory.
    ///
    /// Errors: [`Error::Io`].
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<Section, Error> {
        self.put(|sink| sink.push(bytes))
    }

    /// Whether there is an object of that name, of whatever length.
    ///
    /// Errors: [`Error::Io`] if this cannot be determined.
    pub fn contains(&self, id: SectionId) -> Result<bool, Error> {
        Ok(self.find(id)?.is_some())
    }

    /// The section of that name, with its object's length.
    ///
    /// Errors: [`Error::NoSuchSection`], [`Error::Io`].
    pub fn section(&self, id: SectionId) -> Result<Section, Error> {
        let bytes = self.find(id)?.ok_or(no_such(id))?;
        Ok(Section { id, bytes })
    }

    /// Opens an object for reading, from its start. Its content is not checked.
    ///
    /// Errors: [`Error::NoSuchSection`], [`Error::Io`].
    pub fn file(&self, id: SectionId) -> Result<File, Error> {
        let path = self.object(id);
        match File::open(&path) {
            Ok(file) => Ok(file),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(no_such(id)),
            Err(source) => Err(Error::io("open", path)(source)),
        }
    }

    /// Maps an object, and hashes all of it.
    ///
    /// Errors: [`Error::ObjectChanged`], [`Error::NoSuchSection`], [`Error::Io`].
    pub fn map(&self, id: SectionId) -> Result<Mapping, Error> {
        let mapping = self.map_unverified(id)?;
        check_object(id, SectionId::of(&mapping), || OBJECT.to_owned())?;
        Ok(mapping)
    }

    /// Maps an object without checking its content: results made from it may be wrong until [`check_object`] has
    /// passed.
    ///
    /// Errors: [`Error::NoSuchSection`], [`Error::Io`].
    pub fn map_unverified(&self, id: SectionId) -> Result<Mapping, Error> {
        match Mapping::open(&self.object(id)) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Err(no_such(id))
            }
            result => result,
        }
    }

    /// Hashes an object and compares the hash with its name.
    ///
    /// Errors: [`Error::ObjectChanged`], [`Error::NoSuchSection`], [`Error::Io`].
    pub fn check(&self, id: SectionId) -> Result<(), Error> {
        self.map(id).map(drop)
    }

    /// Removes an object, so that every recipe that names it is run again. The object need not exist.
    ///
    /// Errors: [`Error::Io`].
    pub fn discard(&self, id: SectionId) -> Result<(), Error> {
        let path = self.object(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("remove", path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the sections recorded under `key` if their objects all exist with the recorded lengths; otherwise
    /// `None`, and the step has to be repeated.
    ///
    /// Errors: [`Error::Io`] if this cannot be determined.
    pub fn recall(&self, key: &RecipeKey) -> Result<Option<Vec<Section>>, Error> {
        let path = self.recipe(key);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::io("read", path)(source)),
        };
        let Some(sections) = recipe::decode(&text, &self.seal(key)) else {
            return Ok(None);
        };
        for section in &sections {
            if self.find(section.id)? != Some(section.bytes) {
                return Ok(None);
            }
        }
        Ok(Some(sections))
    }

    /// Records the sections that the step with this key made, replacing an earlier record.
    ///
    /// Errors: [`Error::Io`].
    pub fn record(&self, key: &RecipeKey, sections: &[Section]) -> Result<(), Error> {
        let temp = TempFile::create(&self.temporary, "")?;
        let text = recipe::encode(sections, &self.seal(key));
        temp.file()
            .write_all(text.as_bytes())
            .map_err(Error::io("write", temp.path()))?;
        rename_into_shard(temp, &self.recipe(key))
    }

    /// Length of an object, in bytes, if there is one.
    fn find(&self, id: SectionId) -> Result<Option<u64>, Error> {
        let path = self.object(id);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::io("inspect", path)(source)),
        }
    }

    fn seal<'s>(&'s self, recipe: &'s RecipeKey) -> Seal<'s> {
        let secret = self.secret.as_ref();
        Seal { secret, recipe }
    }

    fn object(&self, id: SectionId) -> PathBuf {
        sharded(&self.objects, &id.to_string())
    }

    fn recipe(&self, key: &RecipeKey) -> PathBuf {
        sharded(&self.recipes, &key.to_string())
    }
}

/// Compares the hash of an object's bytes with its name; `label` names it for people.
///
/// Errors: [`Error::ObjectChanged`].
pub fn check_object(
    id: SectionId,
    found: SectionId,
    label: impl FnOnce() -> String,
) -> Result<(), Error> {
    if found == id {
        return Ok(());
    }
    Err(Error::ObjectChanged {
        part: BundlePart::Section { id, label: label() },
        expected: id,
        found,
    })
}

/// Label of an object that is known by its name alone.
const OBJECT: &str = "an object of the store";

fn no_such(id: SectionId) -> Error {
    Error::NoSuchSection { id, place: "store" }
}

/// Returns `<folder>/ab/abcdef…`, which keeps folders short for file systems that are slow with long ones.
fn sharded(folder: &Path, name: &str) -> PathBuf {
    folder.join(name.get(..2).unwrap_or(name)).join(name)
}

/// Renames a file into a folder that may not exist yet.
fn rename_into_shard(temp: TempFile, target: &Path) -> Result<(), Error> {
    if let Some(shard) = target.parent() {
        fs::create_dir_all(shard).map_err(Error::io("create", shard))?;
    }
    Ok(temp.rename(target)?)
}
