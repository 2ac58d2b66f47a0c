//! The files through which OpenVINO's plugin reaches an NPU: Level Zero's loader, the driver that it loads, the kernel's
//! driver and device.
//!
//! The plugin opens the loader by name, so it is looked for here as the system does: beside the plugin, then in the
//! folders of `LD_LIBRARY_PATH`, then in the system's. Whatever is found runs in this process, and so it must be nobody
//! else's to change, as every library (`locate.rs`). Nothing is loaded here.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use heg_files::{FileError, Owners};

use crate::platform::{NPU_DRIVER, NPU_LOADER, SYSTEM_FOLDERS};

/// The files that a machine has for its NPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NpuFiles {
    /// Level Zero's loader.
    pub loader: Option<PathBuf>,
    /// The driver that the loader loads, without links: its name has its version.
    pub driver: Option<PathBuf>,
    /// Whether the kernel has its driver loaded.
    pub kernel_driver: bool,
    /// The device's file.
    pub device: Option<PathBuf>,
    /// The first line of what the kernel says of the firmware, where this user may read it.
    pub firmware: Option<String>,
}

impl NpuFiles {
    /// Looks for them, with OpenVINO's libraries in `folder` if there are any.
    pub fn find(folder: Option<&Path>) -> Self {
        Self::find_below(Path::new("/"), &folders(folder, library_path()))
    }

    fn find_below(root: &Path, folders: &[PathBuf]) -> Self {
        let first = |names: &[&str]| {
            let paths = folders
                .iter()
                .flat_map(|folder| names.iter().map(|name| folder.join(name)));
            paths.into_iter().find(|path| path.is_file())
        };
        let driver = first(NPU_DRIVER);
        let devices = std::fs::read_dir(root.join("dev/accel"));
        let devices = devices.into_iter().flatten().flatten();
        Self {
            loader: first(NPU_LOADER),
            driver: driver.map(|path| path.canonicalize().unwrap_or(path)),
            kernel_driver: root.join("sys/module/intel_vpu").is_dir(),
            device: devices.map(|entry| entry.path()).min(),
            firmware: firmware(&root.join("sys/kernel/debug/accel")),
        }
    }

    /// Checks that nobody else can change the libraries. Those in `own` were checked with OpenVINO.
    pub(crate) fn check(&self, own: Option<&Path>) -> Result<(), (PathBuf, FileError)> {
        let found = self.loader.iter().chain(&self.driver);
        for path in found.filter(|path| own.is_none_or(|own| !path.starts_with(own))) {
            let checked = Owners::this_user().check(path);
            checked.map_err(|error| (path.clone(), error))?;
        }
        Ok(())
    }
}

impl fmt::Display for NpuFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |path: &Option<PathBuf>| match path {
            Some(path) => format!("`{}`", path.display()),
            None => "not found".to_owned(),
        };
        let kernel = match self.kernel_driver {
            true => "loaded",
            false => "not loaded",
        };
        write!(
            f,
            "loader {}, driver {}, kernel's `intel_vpu` {kernel}, device {}",
            path(&self.loader),
            path(&self.driver),
            path(&self.device)
        )
    }
}

/// The kernel's words about the firmware of the first device, below a folder that mostly only root can read.
fn firmware(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let first = entries.map(|entry| entry.path()).min()?;
    let text = std::fs::read_to_string(first.join("fw_version")).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

fn library_path() -> Option<OsString> {
    std::env::var_os("LD_LIBRARY_PATH")
}

/// Folders in which the system looks for a library of the plugin's, in this order.
fn folders(own: Option<&Path>, library_path: Option<OsString>) -> Vec<PathBuf> {
    let named = library_path.iter().flat_map(std::env::split_paths);
    let named = named.filter(|folder| !folder.as_os_str().is_empty());
    own.map(Path::to_owned)
        .into_iter()
        .chain(named)
        .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
        .collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_loader_is_found_beside_the_plugin_first() {
        let root = tempfile::tempdir().unwrap();
        let [own, named] = ["own", "named"].map(|name| root.path().join(name));
        for folder in [&own, &named] {
            fs::create_dir(folder).unwrap();
        }
        let path = |named: &Path| Some(named.as_os_str().to_owned());
        let found = || NpuFiles::find_below(root.path(), &folders(Some(&own), path(&named))[..2]);
        assert_eq!(found(), NpuFiles::default());
        fs::write(named.join(NPU_LOADER[0]), b"").unwrap();
        assert_eq!(found().loader, Some(named.join(NPU_LOADER[0])));
        fs::write(own.join(NPU_LOADER[0]), b"").unwrap();
        assert_eq!(found().loader, Some(own.join(NPU_LOADER[0])));
    }

    #[test]
    fn a_loader_in_a_folder_that_others_can_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("lib");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(NPU_LOADER[0]), b"").unwrap();
        let found = || NpuFiles::find_below(root.path(), std::slice::from_ref(&folder));
        let elsewhere = Some(Path::new("/nowhere"));
        found().check(elsewhere).unwrap();
        found().check(None).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        for own in [elsewhere, None] {
            let (path, _) = found().check(own).unwrap_err();
            assert_eq!(path, folder.join(NPU_LOADER[0]));
        }
        // What lies beside the plugin was checked with it.
        found().check(Some(&folder)).unwrap();
    }

    #[test]
    fn the_text_names_loader_driver_and_device() {
        let root = tempfile::tempdir().unwrap();
        let text = |found: NpuFiles| {
            let root = fs::canonicalize(root.path()).unwrap();
            found.to_string().replace(&*root.to_string_lossy(), "ROOT")
        };
        let find = || {
            let root = fs::canonicalize(root.path()).unwrap();
            NpuFiles::find_below(&root, &[root.join("lib")])
        };
        assert_eq!(
            text(find()),
            "loader not found, driver not found, kernel's `intel_vpu` not loaded, device not found"
        );
        for folder in ["lib", "dev/accel", "sys/module/intel_vpu"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let lib = root.path().join("lib");
        fs::write(lib.join(NPU_LOADER[0]), b"").unwrap();
        fs::write(lib.join("libze_intel_npu.so.1.32.1"), b"").unwrap();
        symlink("libze_intel_npu.so.1.32.1", lib.join(NPU_DRIVER[0])).unwrap();
        fs::write(root.path().join("dev/accel/accel0"), b"").unwrap();
        assert_eq!(
            text(find()),
            "loader `ROOT/lib/libze_loader.so.1`, driver `ROOT/lib/libze_intel_npu.so.1.32.1`, kernel's `intel_vpu` \
             loaded, device `ROOT/dev/accel/accel0`"
        );
    }
}
