//! The store of a device: parts, each once, and views of them that are bundles.
//!
//! ```text
//! STORE/parts/ab/abcdef…     a part, read-only, named by the ids and lengths of its sections
//! STORE/notes/ab/abcdef…     the identity of that file when its bytes had been checked
//! STORE/views/VIEW           the parts of a bundle, named by the bundle
//! STORE/assembled/VIEW       the bundle as one file, where the system cannot map parts
//! STORE/names/NAME           what a name stands for, and stood for before
//! STORE/releases/HASH.json   statements and, as HASH.1.minisig, their signatures; with HASH.keys.1.json, changes of keys
//! STORE/trust.state          newest release of each name
//! STORE/tmp/ID.partial       a part that is being fetched
//! STORE/lock                 held by whoever changes the store
//! ```
//!
//! Nothing gets its name before it is whole and synced, and nothing is written in place: a crash leaves partial files,
//! which the next transfer goes on with. Readers take no lock.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use heg_artifacts::{
    Bundle, BundleHead, FileIdentity, FilePart, HEAD_BYTES_MAX, PartId, SectionId, VIEW_BYTES_MAX,
    View, maps_parts,
};
use heg_files::{OwnFolder, TempFile, write_own};

use crate::error::ShipError;
use crate::platform;

/// A folder of parts, views and names that only this user and root can change.
#[derive(Debug, Clone)]
pub struct DeviceStore {
    folder: OwnFolder,
}

/// The right to change a store, held by one process at a time.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
}

impl DeviceStore {
    /// Opens the store in a folder; creates it if there is none.
    ///
    /// Errors: [`ShipError::File`].
    pub fn open(path: &Path) -> Result<Self, ShipError> {
        let folder = OwnFolder::create(path)?;
        Ok(Self { folder })
    }

    /// Opens the store in a folder, if there is one.
    ///
    /// Errors: [`ShipError::File`].
    pub fn open_existing(path: &Path) -> Result<Option<Self>, ShipError> {
        match path.join(NAMES).is_dir() {
            true => Self::open(path).map(Some),
            false => Ok(None),
        }
    }

    /// The store's folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until nobody else changes the store. `waits` is called first if somebody does.
    ///
    /// Errors: [`ShipError::Io`].
    pub fn lock(&self, waits: &dyn Fn()) -> Result<StoreLock, ShipError> {
        let path = self.path().join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(ShipError::io("open", &path))?;
        if file.try_lock().is_err() {
            waits();
            file.lock().map_err(ShipError::io("lock", &path))?;
        }
        Ok(StoreLock { _file: file })
    }

    pub(crate) fn own(&self) -> &OwnFolder {
        &self.folder
    }

    /// A folder of the store.
    pub(crate) fn inner(&self, name: &str) -> Result<OwnFolder, ShipError> {
        Ok(self.folder.folder(name)?)
    }

    pub(crate) fn parts(&self) -> PathBuf {
        self.path().join(PARTS)
    }

    /// Whether a part is here, whole and unchanged since its bytes were checked.
    pub(crate) fn has_part(&self, id: PartId, bytes: u64) -> bool {
        let path = id.path_in(&self.parts());
        let Ok(Some(identity)) = FileIdentity::of_path(&path) else {
            // Without identities there is the length alone: the first start hashes.
            return fs::metadata(&path).is_ok_and(|data| !cfg!(unix) && data.len() == bytes);
        };
        let note = id.path_in(&self.path().join(NOTES));
        let note = fs::read(note).ok();
        let noted = note.and_then(|text| serde_json::from_slice::<FileIdentity>(&text).ok());
        identity.bytes == bytes && noted == Some(identity)
    }

    /// Puts a part after every byte of it was checked: syncs it, and gives it its name.
    pub(crate) fn put_part(
        &self,
        id: PartId,
        partial: &Path,
        file: &File,
    ) -> Result<(), ShipError> {
        platform::protect_part(file).map_err(ShipError::io("protect", partial))?;
        file.sync_all().map_err(ShipError::io("sync", partial))?;
        let path = id.path_in(&self.parts());
        let folder = path.parent().unwrap_or(&path);
        let named = fs::create_dir_all(folder).and_then(|()| fs::rename(partial, &path));
        named.map_err(ShipError::io("create", &path))?;
        sync_folder(folder)?;
        self.note_part(id)
    }

    /// Notes that the bytes of a part were checked.
    pub(crate) fn note_part(&self, id: PartId) -> Result<(), ShipError> {
        let path = id.path_in(&self.parts());
        let identity = FileIdentity::of_path(&path).map_err(ShipError::bundle(path.display()))?;
        let Some(identity) = identity else {
            return Ok(());
        };
        let note = id.path_in(&self.path().join(NOTES));
        let folder = note.parent().unwrap_or(&note);
        fs::create_dir_all(folder).map_err(ShipError::io("create", folder))?;
        // All numbers, so serialising cannot fail.
        let text = serde_json::to_vec(&identity).unwrap_or_default();
        Ok(heg_files::write_whole(&note, &[&text])?)
    }

    /// Puts the view of a bundle whose parts are all here, so that it survives a power cut.
    pub(crate) fn put_view(&self, bundle: SectionId, parts: &[FilePart]) -> Result<(), ShipError> {
        let view = View::of(parts).map_err(ShipError::bundle(bundle.short()))?;
        // Each part's own folder was synced when the part came.
        sync_folder(&self.parts())?;
        let views = self.inner(VIEWS)?;
        let path = views.path().join(bundle.to_string());
        write_own(&path, &[view.to_text().as_bytes()])?;
        sync_folder(views.path())?;
        match maps_parts() {
            true => Ok(()),
            false => self.assemble(bundle, &view),
        }
    }

    fn assemble(&self, bundle: SectionId, view: &View) -> Result<(), ShipError> {
        let folder = self.inner(ASSEMBLED)?;
        let path = folder.path().join(bundle.to_string());
        let temp = TempFile::create(folder.path(), "assemble-")?;
        for part in view.parts() {
            let part = part.id.path_in(&self.parts());
            let mut part = File::open(&part).map_err(ShipError::io("open", &part))?;
            let copied = io::copy(&mut part, &mut temp.file());
            copied.map_err(ShipError::io("write", temp.path()))?;
        }
        let synced = temp.file().sync_all();
        synced.map_err(ShipError::io("sync", temp.path()))?;
        Ok(temp.rename(&path)?)
    }

    /// The path by which a bundle of the store is opened; `None` if it is not here.
    pub fn bundle_path(&self, bundle: SectionId) -> Option<PathBuf> {
        let folder = match maps_parts() {
            true => VIEWS,
            false => ASSEMBLED,
        };
        let path = self.path().join(folder).join(bundle.to_string());
        path.is_file().then_some(path)
    }

    /// The parts of a bundle of the store; `None` if it is not here.
    ///
    /// Errors: [`ShipError::File`], [`ShipError::Bundle`].
    pub fn view(&self, bundle: SectionId) -> Result<Option<View>, ShipError> {
        let views = self.inner(VIEWS)?;
        let Some(text) = views.read(&bundle.to_string(), VIEW_BYTES_MAX)? else {
            return Ok(None);
        };
        let place = views.path().join(bundle.to_string());
        let view = View::parse(&text).map_err(ShipError::bundle(place.display()))?;
        Ok(Some(view))
    }

    /// The bundles of the store, by their names' order.
    ///
    /// Errors: [`ShipError::Io`].
    pub fn bundles(&self) -> Result<Vec<SectionId>, ShipError> {
        let names = file_names(&self.path().join(VIEWS))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// The head of a bundle of the store; `None` if it is not here or cannot be read.
    pub(crate) fn head(&self, bundle: SectionId) -> Option<BundleHead> {
        let view = self.view(bundle).ok()??;
        let first = view.parts().first()?;
        let file = File::open(first.id.path_in(&self.parts())).ok()?;
        let mut bytes = Vec::new();
        file.take(HEAD_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let head = BundleHead::read(bytes).ok()?;
        (head.manifest_id() == bundle).then_some(head)
    }

    /// Opens a bundle of the store.
    ///
    /// Errors: [`ShipError::Missing`], [`ShipError::Bundle`].
    pub fn bundle(&self, bundle: SectionId) -> Result<Bundle, ShipError> {
        let path = self.bundle_path(bundle).ok_or_else(|| ShipError::Missing {
            what: format!("bundle `{}`", bundle.short()),
            place: self.path().display().to_string(),
        })?;
        Bundle::open(&path).map_err(ShipError::bundle(path.display()))
    }

    /// The lengths of all files below a folder of the store, by their paths.
    pub(crate) fn files_below(&self, name: &str) -> Result<BTreeMap<PathBuf, u64>, ShipError> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.path().join(name)];
        while let Some(folder) = folders.pop() {
            for name in file_names(&folder)? {
                let path = folder.join(name);
                match fs::symlink_metadata(&path) {
                    Ok(data) if data.is_dir() => folders.push(path),
                    Ok(data) => drop(found.insert(path, platform::room_taken(&data))),
                    // It was removed meanwhile.
                    Err(_) => {}
                }
            }
        }
        Ok(found)
    }
}

/// Names in a folder, sorted; none if the folder is not there.
pub(crate) fn file_names(folder: &Path) -> Result<Vec<String>, ShipError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ShipError::io("list", folder)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(ShipError::io("list", folder))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Makes renames in a folder durable. Only Unix can open a folder for that.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), ShipError> {
    if cfg!(unix) {
        let opened = File::open(folder).map_err(ShipError::io("open", folder))?;
        opened.sync_all().map_err(ShipError::io("sync", folder))?;
    }
    Ok(())
}

/// The folders of a store.
pub(crate) const PARTS: &str = "parts";
pub(crate) const NOTES: &str = "notes";
pub(crate) const VIEWS: &str = "views";
pub(crate) const ASSEMBLED: &str = "assembled";
pub(crate) const NAMES: &str = "names";
pub(crate) const RELEASES: &str = "releases";
pub(crate) const PARTIAL: &str = "tmp";
