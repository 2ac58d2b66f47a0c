//! Files of profiles: one per bundle and set of devices, in the cache folder (see `verified` of `heg-runtime`).
//!
//! The name holds the bundle's identity and a hash of everything else that latencies depend on: devices, drivers,
//! properties. So a new driver finds no profile rather than an outdated one.

use std::io::Read;
use std::path::{Path, PathBuf};

use heg_artifacts::{Bundle, SectionId};
use heg_files::{FileError, OwnFolder, open_regular, write_whole};
use heg_profiler::measure::{DeviceIdentity, PROFILE_BYTES_MAX, Profile};

use crate::error::ExecError;

/// The file of a profile. Its speeds are trusted, so it is in a folder that only this user can change, or its user
/// has named it.
#[derive(Debug, Clone)]
pub struct ProfileFile(PathBuf);

impl ProfileFile {
    /// Returns the file of a bundle on a set of devices in the cache folder.
    pub fn kept(cache: &OwnFolder, bundle: &Bundle, devices: &[DeviceIdentity]) -> Self {
        Self(path(cache, bundle, devices))
    }

    /// Returns a file that the user names.
    pub fn named(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads the profile, which must be of this bundle and these devices; `None` if there is no file.
    ///
    /// # Errors
    ///
    /// [`ExecError::ProfileFile`], [`ExecError::Profile`].
    pub fn read(
        &self,
        bundle: &Bundle,
        devices: &[DeviceIdentity],
    ) -> Result<Option<Profile>, ExecError> {
        let refused = |source| ExecError::Profile {
            path: self.0.clone(),
            source,
        };
        let Some(text) = read_text(&self.0)? else {
            return Ok(None);
        };
        let profile = Profile::parse(&text).map_err(refused)?;
        profile
            .expect(bundle.manifest_id(), devices)
            .map_err(refused)?;
        Ok(Some(profile))
    }

    /// Writes a profile atomically: a reader sees the old one or the new one.
    ///
    /// # Errors
    ///
    /// [`ExecError::ProfileFile`], [`ExecError::Profile`].
    pub fn write(&self, profile: &Profile) -> Result<(), ExecError> {
        let file = self.0.as_path();
        let text = profile.to_text().map_err(|source| ExecError::Profile {
            path: file.to_owned(),
            source,
        })?;
        let written = match file.parent().map(std::fs::create_dir_all) {
            Some(Err(source)) => Err(FileError::Io {
                action: "create a folder for",
                path: file.to_owned(),
                source,
            }),
            _ => write_whole(file, &[text.as_bytes()]),
        };
        written.map_err(|source| ExecError::ProfileFile {
            path: file.to_owned(),
            source,
        })
    }
}

/// Returns the path of the profile of a bundle on a set of devices.
fn path(cache: &OwnFolder, bundle: &Bundle, devices: &[DeviceIdentity]) -> PathBuf {
    let mut text = String::new();
    for device in devices {
        let DeviceIdentity {
            class,
            openvino,
            name,
            driver,
            properties,
        } = device;
        text.push_str(&format!(
            "{class:?} {openvino:?} {name:?} {driver:?} {properties:?}\n"
        ));
    }
    let devices = SectionId::of(text.as_bytes()).short();
    cache
        .path()
        .join("profiles")
        .join(format!("{}-{devices}.ron", bundle.manifest_id()))
}

/// Reads the profile of a bundle on devices from the cache folder, if there is one.
///
/// # Errors
///
/// [`ExecError::ProfileFile`], [`ExecError::Profile`].
pub fn load_profile(
    cache: &OwnFolder,
    bundle: &Bundle,
    devices: &[DeviceIdentity],
) -> Result<Option<Profile>, ExecError> {
    ProfileFile::kept(cache, bundle, devices).read(bundle, devices)
}

/// Returns the text of a file; `None` if there is no file. A file that is too long is cut, and its reader refuses it.
fn read_text(file: &Path) -> Result<Option<String>, ExecError> {
    let read = || -> Result<String, FileError> {
        let mut text = String::new();
        let limit = PROFILE_BYTES_MAX as u64 + 1;
        let mut bounded = open_regular(file)?.take(limit);
        let read = bounded.read_to_string(&mut text);
        read.map_err(|source| FileError::Io {
            action: "read",
            path: file.to_owned(),
            source,
        })?;
        Ok(text)
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(source) => Err(ExecError::ProfileFile {
            path: file.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use heg_spec::DeviceClass;

    use super::*;

    const TINY: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../artifacts/testdata/v1/tiny.heg"
    );

    fn devices(driver: &str) -> Vec<DeviceIdentity> {
        vec![DeviceIdentity {
            class: DeviceClass::Cpu,
            openvino: "CPU".to_owned(),
            name: "a processor".to_owned(),
            driver: driver.to_owned(),
            properties: [("NUM_STREAMS".to_owned(), "1".to_owned())].into(),
        }]
    }

    #[test]
    fn a_profile_is_found_by_bundle_device_and_driver() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let bundle = Bundle::open(TINY).unwrap();
        let profile = Profile::new(bundle.manifest_id(), "host-cpu", devices("1"));
        let file = ProfileFile::kept(&cache, &bundle, &devices("1"));
        file.write(&profile).unwrap();
        let load = |driver| load_profile(&cache, &bundle, &devices(driver)).unwrap();
        assert_eq!(load("1"), Some(profile));
        assert_eq!(load("2"), None);
    }

    #[test]
    fn a_file_that_was_tampered_with_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let bundle = Bundle::open(TINY).unwrap();
        let file = ProfileFile::kept(&cache, &bundle, &devices("1"));
        let refused = |profile: &Profile| {
            file.write(profile).unwrap();
            let error = load_profile(&cache, &bundle, &devices("1")).unwrap_err();
            matches!(error, ExecError::Profile { .. })
        };
        let mine = bundle.manifest_id();
        assert!(refused(&Profile::new(
            SectionId::of(b"x"),
            "host-cpu",
            devices("1")
        )));
        assert!(refused(&Profile::new(mine, "host-cpu", devices("2"))));
        std::fs::write(file.path(), vec![b' '; PROFILE_BYTES_MAX + 10]).unwrap();
        assert!(load_profile(&cache, &bundle, &devices("1")).is_err());
    }
}
