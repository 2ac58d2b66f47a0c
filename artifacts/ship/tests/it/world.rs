//! A bundle that is offered: in a layout, and by a registry in front of it.

use std::path::PathBuf;

use heg_ship::export_layout;

use crate::bundles::{Content, Told, bundle, open};
use crate::lying::{Asked, Liar, Twist};

/// A layout with one bundle, as tag `v1`.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    /// The bundle's file.
    pub(crate) file: PathBuf,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = bundle(folder.path(), "one", &Content::default());
        export_layout(
            &folder.path().join("layout"),
            "v1",
            &[open(&file)],
            None,
            &Told::default(),
        )
        .unwrap();
        Self { folder, file }
    }

    pub(crate) fn layout(&self) -> PathBuf {
        self.folder.path().join("layout")
    }

    /// A registry in front of the layout.
    pub(crate) fn liar(&self, behaviour: impl Fn(&Asked) -> Twist + Send + Sync + 'static) -> Liar {
        Liar::new(&self.layout(), behaviour)
    }
}
