//! The layer as Vulkan's loader finds it: a manifest in a folder, and the environment of a process.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::plan::VkPlan;
use crate::record::VkEntry;

/// Name of the file of the plan, and of the record: what a test tells the layer in another process.
pub(crate) const PLAN: &str = "HEG_TEST_VK_PLAN";
pub(crate) const RECORD: &str = "HEG_TEST_VK_RECORD";

/// Name of the layer.
const NAME: &str = "VK_LAYER_HEG_faults";

/// Name of the library, as cargo calls it.
const LIBRARY: &str = if cfg!(windows) {
    "heg_vk_faults.dll"
} else {
    "libheg_vk_faults.so"
};

/// A layer that is described in a folder, beside its plan and its record.
#[derive(Debug, Clone)]
pub struct Installed {
    folder: PathBuf,
}

impl Installed {
    /// Describes the layer in a folder, for a test program that cargo has built: the library stands beside it.
    ///
    /// # Errors
    ///
    /// Error of the file system, or that the library is not there.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let beside = program.parent().map(|folder| folder.join(LIBRARY));
        let library = beside.filter(|path| path.is_file()).ok_or_else(|| {
            let message = format!("there is no {LIBRARY} beside {}", program.display());
            io::Error::new(io::ErrorKind::NotFound, message)
        })?;
        let installed = Self {
            folder: folder.to_owned(),
        };
        let manifest = manifest(&library.to_string_lossy());
        std::fs::write(folder.join("VkLayer_HEG_faults.json"), manifest)?;
        installed.plan(&VkPlan::default())?;
        Ok(installed)
    }

    /// Plans what happens to devices that are made from now on.
    ///
    /// # Errors
    ///
    /// Error of the file system.
    pub fn plan(&self, plan: &VkPlan) -> io::Result<()> {
        std::fs::write(self.folder.join("plan"), plan.to_string())
    }

    /// The record so far.
    ///
    /// # Errors
    ///
    /// Error of the file system.
    pub fn record(&self) -> io::Result<Vec<VkEntry>> {
        VkEntry::read(&self.folder.join("record"))
    }

    /// Forgets what has happened.
    ///
    /// # Errors
    ///
    /// Error of the file system.
    pub fn clear_record(&self) -> io::Result<()> {
        std::fs::write(self.folder.join("record"), "")
    }

    /// Returns the environment of a process whose devices have the layer.
    pub fn environment(&self) -> [(&'static str, OsString); 4] {
        [
            ("VK_ADD_LAYER_PATH", self.folder.clone().into()),
            ("VK_INSTANCE_LAYERS", NAME.into()),
            (PLAN, self.folder.join("plan").into()),
            (RECORD, self.folder.join("record").into()),
        ]
    }
}

/// The loader's description of a layer.
fn manifest(library: &str) -> String {
    let library = library.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        r#"{{
  "file_format_version": "1.2.0",
  "layer": {{
    "name": "{NAME}",
    "type": "GLOBAL",
    "library_path": "{library}",
    "api_version": "1.3.0",
    "implementation_version": "1",
    "description": "Injects faults, for tests"
  }}
}}
"#
    )
}
