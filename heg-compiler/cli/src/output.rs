//! The folder for compiled bundles, with everything that a later compile reuses.
//!
//! ```text
//! bundles/NAME.heg       bundles
//! bundles/store/         encoded weights and NPU blobs, by the hash of their content
//! bundles/models/NAME/   models that were fetched or synthesised by name
//! ```
//!
//! Earlier versions kept all of it in `artifacts`. Files that exist only there are used from there, with a hint.

use crate::terminal::note;
use std::env;
use std::path::{Path, PathBuf};

/// The folder of bundles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFolder {
    path: PathBuf,
    /// Folder of an earlier version, for files that are not yet in this one.
    earlier: Option<PathBuf>,
}

impl OutputFolder {
    /// The folder that `HEG_BUNDLES` names, or else `bundles` in `parent`.
    pub fn below(parent: &Path) -> Self {
        match env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
            Some(path) => Self {
                path: path.into(),
                earlier: None,
            },
            None => Self::of(parent),
        }
    }

    fn of(parent: &Path) -> Self {
        Self {
            path: parent.join("bundles"),
            earlier: Some(parent.join("artifacts")),
        }
    }

    /// Path at which a new bundle called `name` is written.
    pub fn bundle(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.heg"))
    }

    /// Path of an existing bundle called `name`; if there is none, that of a new one.
    pub fn compiled(&self, name: &str) -> PathBuf {
        self.kept(self.bundle(name), &format!("bundles/{name}.heg"))
    }

    /// Folder of the build cache.
    pub fn store(&self) -> PathBuf {
        self.kept(self.path.join("store"), "store")
    }

    /// Folder of the model called `name`.
    pub fn model(&self, name: &str) -> PathBuf {
        let models = Path::new("models").join(name);
        self.kept(self.path.join(&models), &models.to_string_lossy())
    }

    /// Returns `path`, unless only the earlier version's `name` exists.
    fn kept(&self, path: PathBuf, name: &str) -> PathBuf {
        let earlier = self.earlier.as_ref().map(|folder| folder.join(name));
        match earlier.filter(|earlier| !path.exists() && earlier.exists()) {
            None => path,
            Some(earlier) => {
                let (from, to) = (earlier.display(), path.display());
                note(format!(
                    "using `{from}`, where earlier versions kept it; to keep it: mkdir -p {} && mv {from} {to}",
                    self.path.join("models").display()
                ));
                earlier
            }
        }
    }
}

const VARIABLE: &str = "HEG_BUNDLES";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_earlier_versions_files_are_found_until_there_are_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let output = OutputFolder::of(folder.path());
        let [old, new] = ["artifacts", "bundles"].map(|name| folder.path().join(name));
        assert_eq!(output.store(), new.join("store"));
        for name in ["store", "models/a", "bundles"] {
            fs::create_dir_all(old.join(name)).unwrap();
        }
        fs::write(old.join("bundles/a.heg"), "").unwrap();
        assert_eq!(output.store(), old.join("store"));
        assert_eq!(output.model("a"), old.join("models/a"));
        assert_eq!(output.compiled("a"), old.join("bundles/a.heg"));
        assert_eq!(output.model("b"), new.join("models/b"));
        assert_eq!(output.bundle("a"), new.join("a.heg"));
        for name in ["store", "models/a"] {
            fs::create_dir_all(new.join(name)).unwrap();
        }
        assert_eq!(output.store(), new.join("store"));
        assert_eq!(output.model("a"), new.join("models/a"));
    }
}
