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
//! **Sharing.** Machines may share a folder, or a place behind their folders ([`SharedPlace`]): there a store looks for
//! recipes that its folder lacks, and there it sends what it records. What it recorded before it shared stays its own.
//!
//! All methods take `&self` and may be called from many threads and processes at once.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use heg_files::{TempFile, remove_stale};

use crate::content_id::SectionId;
use crate::error::{BundlePart, Error};
use crate::manifest::Section;
use crate::mapping::Mapping;
use crate::recipe::{self, RecipeKey, Seal, StoreKey};
use crate::shared::{self, SharedPlace};
use crate::sink::SectionSink;

/// A folder of sections.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    temporary: PathBuf,
    sharing: StoreSharing,
}

/// The machines that a store shares its sections with.
#[derive(Debug, Clone, Default)]
pub enum StoreSharing {
    /// Nobody else: everyone who can write to the store's folder is believed.
    #[default]
    Nobody,
    /// Machines that see the folder and have the key; recipes of others count as absent.
    Folder(StoreKey),
    /// Machines that see a shared place and have the key.
    Place(StoreKey, Arc<dyn SharedPlace>),
}

impl StoreSharing {
    fn key(&self) -> Option<&StoreKey> {
        match self {
            Self::Nobody => None,
            Self::Folder(key) | Self::Place(key, _) => Some(key),
        }
    }

    fn place(&self) -> Option<&dyn SharedPlace> {
        match self {
            Self::Nobody | Self::Folder(_) => None,
            Self::Place(_, place) => Some(place.as_ref()),
        }
    }
}

impl Store {
    /// Opens the store in `folder`, creates it if absent, and removes the leftovers of interrupted runs.
    ///
    /// Errors: [`Error::Io`] if folders cannot be created or listed.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let store = Self {
            folder: folder.to_owned(),
            temporary: folder.join("tmp"),
            sharing: StoreSharing::Nobody,
        };
        for folder in [OBJECTS, RECIPES, "tmp"].map(|name| folder.join(name)) {
            fs::create_dir_all(&folder).map_err(Error::io("create", folder))?;
        }
        remove_stale(&store.temporary, "")?;
        Ok(store)
    }

    /// Shares the store's sections with other machines.
    pub fn shared(self, sharing: StoreSharing) -> Self {
        Self { sharing, ..self }
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

    /// Returns the sections recorded under `key` if their objects all exist with the recorded lengths, or could be fetched;
    /// otherwise `None`, and the step has to be repeated.
    ///
    /// Errors: [`Error::Io`] if this cannot be determined; [`Error::SharedPlace`].
    pub fn recall(&self, key: &RecipeKey) -> Result<Option<Vec<Section>>, Error> {
        let Some(sections) = self.recorded(key)? else {
            return Ok(None);
        };
        let mut are_here = true;
        // All are looked at, so that those which somebody damaged are all gone before the step sends them again.
        for section in &sections {
            are_here &= self.find(section.id)? == Some(section.bytes) || self.fetch(*section)?;
        }
        Ok(are_here.then_some(sections))
    }

    /// Records the sections that the step with this key made, replacing an earlier record. They are sent before they are
    /// recorded here: if that fails, the next try finds nothing recorded and sends them again.
    ///
    /// Errors: [`Error::Io`], [`Error::SharedPlace`].
    pub fn record(&self, key: &RecipeKey, sections: &[Section]) -> Result<(), Error> {
        let text = recipe::encode(sections, &self.seal(key));
        let temp = self.unfinished(text.as_bytes())?;
        if let Some(place) = self.sharing.place() {
            for section in sections {
                let name = object_name(section.id);
                shared::send_once(place, &name, &self.object(section.id), section.bytes)?;
            }
            shared::send(place, &recipe_name(key), temp.path())?;
        }
        rename_into_shard(temp, &self.folder.join(recipe_name(key)))
    }

    /// The sections of a recipe, in the folder or where machines share theirs.
    fn recorded(&self, key: &RecipeKey) -> Result<Option<Vec<Section>>, Error> {
        let (name, seal) = (recipe_name(key), self.seal(key));
        let path = self.folder.join(&name);
        let here = match fs::read(&path) {
            Ok(text) => recipe::decode(&text, &seal),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(source) => return Err(Error::io("read", path)(source)),
        };
        let (None, Some(place)) = (&here, self.sharing.place()) else {
            return Ok(here);
        };
        let Some(text) = shared::recipe(place, &name)? else {
            return Ok(None);
        };
        let fetched = recipe::decode(&text, &seal);
        if fetched.is_some() {
            // The place is not asked again.
            rename_into_shard(self.unfinished(&text)?, &path)?;
        }
        Ok(fetched)
    }

    /// A file with these bytes that has no name yet.
    fn unfinished(&self, bytes: &[u8]) -> Result<TempFile, Error> {
        let temp = TempFile::create(&self.temporary, "")?;
        temp.file()
            .write_all(bytes)
            .map_err(Error::io("write", temp.path()))?;
        Ok(temp)
    }

    /// Fetches an object that machines share; false if there is none, or one with other bytes, which is removed there.
    fn fetch(&self, section: Section) -> Result<bool, Error> {
        let Some(place) = self.sharing.place() else {
            return Ok(false);
        };
        let name = object_name(section.id);
        let mut sink = SectionSink::new(TempFile::create(&self.temporary, "")?);
        if !shared::fetch(place, &name, section, &mut sink)? {
            return Ok(false);
        }
        let (found, temp) = sink.finish()?;
        if found != section {
            shared::remove(place, &name)?;
            return Ok(false);
        }
        rename_into_shard(temp, &self.object(section.id))?;
        Ok(true)
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
        let secret = self.sharing.key();
        Seal { secret, recipe }
    }

    fn object(&self, id: SectionId) -> PathBuf {
        self.folder.join(object_name(id))
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

fn object_name(id: SectionId) -> String {
    sharded(OBJECTS, &id.to_string())
}

fn recipe_name(key: &RecipeKey) -> String {
    sharded(RECIPES, &key.to_string())
}

/// Returns `<folder>/ab/abcdef…`, which keeps folders short for file systems that are slow with long ones.
fn sharded(folder: &str, name: &str) -> String {
    format!("{folder}/{}/{name}", name.get(..2).unwrap_or(name))
}

/// Renames a file into a folder that may not exist yet.
fn rename_into_shard(temp: TempFile, target: &Path) -> Result<(), Error> {
    if let Some(shard) = target.parent() {
        fs::create_dir_all(shard).map_err(Error::io("create", shard))?;
    }
    Ok(temp.rename(target)?)
}

const OBJECTS: &str = "blake3";
const RECIPES: &str = "recipes";
