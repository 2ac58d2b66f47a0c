//! Files of profiles: one per bundle and set of devices, in the cache folder (see `verified`).
//!
//! The name holds the bundle's identity and a hash of everything else that latencies depend on: devices, drivers,
//! properties. So a new driver finds no profile rather than an outdated one.

use std::io::Read;
use std::path::{Path, PathBuf};

use heg_artifacts::{Bundle, SectionId};
use heg_files::{FileError, OwnFolder, open_regular, write_whole};
use heg_profiler::measure::{DeviceIdentity, PROFILE_BYTES_MAX, Profile};

use crate::error::RuntimeError;

/// Path of the profile of a bundle on a set of devices.
pub fn path(cache: &OwnFolder, bundle: &Bundle, devices: &[DeviceIdentity]) -> PathBuf {
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

/// The profile of a bundle on devices, if there is one in the cache folder.
///
/// # Errors
///
/// [`RuntimeError::ProfileFile`], [`RuntimeError::Profile`].
pub fn load_profile(
    cache: &OwnFolder,
    bundle: &Bundle,
    devices: &[DeviceIdentity],
) -> Result<Option<Profile>, RuntimeError> {
    read(&path(cache, bundle, devices), bundle, devices)
}

/// The profile in a file, which must be of this bundle and these devices; none where there is no file.
///
/// # Errors
///
/// [`RuntimeError::ProfileFile`], [`RuntimeError::Profile`].
pub fn read(
    file: &Path,
    bundle: &Bundle,
    devices: &[DeviceIdentity],
) -> Result<Option<Profile>, RuntimeError> {
    let refused = |source| RuntimeError::Profile {
        path: file.to_owned(),
        source,
    };
    let Some(text) = read_text(file)? else {
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
/// [`RuntimeError::ProfileFile`], [`RuntimeError::Profile`].
pub fn write(file: &Path, profile: &Profile) -> Result<(), RuntimeError> {
    let text = profile.to_text().map_err(|source| RuntimeError::Profile {
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
    written.map_err(|source| RuntimeError::ProfileFile {
        path: file.to_owned(),
        source,
    })
}

/// The text of a file; none if there is no file. A file that is too long is cut, and its reader refuses it.
fn read_text(file: &Path) -> Result<Option<String>, RuntimeError> {
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
        Err(source) => Err(RuntimeError::ProfileFile {
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
        "/../artifacts/testdata/v1/tiny.heg"
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
        let file = path(&cache, &bundle, &devices("1"));
        write(&file, &profile).unwrap();
        let load = |driver| load_profile(&cache, &bundle, &devices(driver)).unwrap();
        assert_eq!(load("1"), Some(profile));
        assert_eq!(load("2"), None);
    }

    #[test]
    fn a_file_that_was_tampered_with_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let bundle = Bundle::open(TINY).unwrap();
        let file = path(&cache, &bundle, &devices("1"));
        let refused = |profile: &Profile| {
            write(&file, profile).unwrap();
            let error = load_profile(&cache, &bundle, &devices("1")).unwrap_err();
            matches!(error, RuntimeError::Profile { .. })
        };
        let mine = bundle.manifest_id();
        assert!(refused(&Profile::new(
            SectionId::of(b"x"),
            "host-cpu",
            devices("1")
        )));
        assert!(refused(&Profile::new(mine, "host-cpu", devices("2"))));
        std::fs::write(&file, vec![b' '; PROFILE_BYTES_MAX + 10]).unwrap();
        assert!(load_profile(&cache, &bundle, &devices("1")).is_err());
    }
}
