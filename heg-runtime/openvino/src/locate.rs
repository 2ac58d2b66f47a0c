//! Finds the folder that holds the OpenVINO libraries.
//!
//! Looks at the user's environment variables, then beside the running executable, where `cargo xtask setup` and
//! release archives put the folder. Loads nothing, and knows no system folders: the result must show which OpenVINO
//! runs. A variable that is set to a place without OpenVINO is an error, never a reason to look further.
//!
//! The libraries run in this process, so they have to belong to somebody who could change it anyway: root, this user,
//! the owner of the executable, or the owner of a folder that a variable names. It is an error if anybody else could
//! change them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use heg_files::Owners;

use crate::error::OpenvinoError;
use crate::platform::LIBRARY_FILES;

/// Release of OpenVINO with which this project is built and measured.
pub const OPENVINO_VERSION: &str = "2026.4.1";

/// Returns the folder that holds the OpenVINO C library.
///
/// Looks at `OPENVINO_DIR`, then `INTEL_OPENVINO_DIR`, then `openvino-2026.4.1` in the executable's folder and the
/// three above it. Each may be the folder of the libraries itself, an install root, or a Python package. An empty
/// variable counts as not set.
///
/// # Errors
///
/// [`OpenvinoError::EnvironmentUnusable`] if a variable is set to a place without OpenVINO, [`OpenvinoError::LibraryNotFound`] if
/// there is none anywhere, [`OpenvinoError::LibraryExposed`] if others could change the libraries.
pub fn find_libraries() -> Result<PathBuf, OpenvinoError> {
    let executable = std::env::current_exe().ok();
    search(&|name| std::env::var_os(name), executable.as_deref())
}

/// Returns the C library's file in `folder`, if it exists.
pub(crate) fn library_file(folder: &Path) -> Option<PathBuf> {
    LIBRARY_FILES
        .iter()
        .map(|file| folder.join(file))
        .find(|path| path.is_file())
}

fn search(
    environment: &dyn Fn(&str) -> Option<OsString>,
    executable: Option<&Path>,
) -> Result<PathBuf, OpenvinoError> {
    let mut searched = Vec::new();
    for variable in VARIABLES {
        let Some(value) = environment(variable).filter(|value| !value.is_empty()) else {
            continue;
        };
        let value = PathBuf::from(value);
        return match search_root(&value, &mut searched) {
            Some(folder) => checked(folder, Some(&value)),
            None => Err(OpenvinoError::EnvironmentUnusable {
                variable,
                value,
                searched,
            }),
        };
    }
    let folders = executable
        .into_iter()
        .flat_map(|path| path.ancestors().skip(1));
    for folder in folders.take(FOLDERS_SEARCHED) {
        let root = folder.join(format!("openvino-{OPENVINO_VERSION}"));
        if let Some(found) = search_root(&root, &mut searched) {
            return checked(found, executable);
        }
    }
    Err(OpenvinoError::LibraryNotFound { searched })
}

/// Returns the folder if only its rightful owners can change its contents; the owner of `trusted` is one of them.
fn checked(folder: PathBuf, trusted: Option<&Path>) -> Result<PathBuf, OpenvinoError> {
    let check = || {
        let owners = Owners::this_user();
        let owners = match trusted.filter(|trusted| trusted.exists()) {
            Some(trusted) => owners.and_owner_of(trusted)?,
            None => owners,
        };
        owners.check_content(&folder)
    };
    match check() {
        Ok(()) => Ok(folder),
        Err(source) => Err(OpenvinoError::LibraryExposed { folder, source }),
    }
}

fn search_root(root: &Path, searched: &mut Vec<PathBuf>) -> Option<PathBuf> {
    for layout in LAYOUTS {
        let folder = if layout.is_empty() {
            root.to_owned()
        } else {
            root.join(layout)
        };
        if library_file(&folder).is_some() {
            return Some(folder);
        }
    }
    searched.push(root.to_owned());
    None
}

/// Environment variables, the first of which wins. The `setupvars` script of Intel's archives sets the second.
const VARIABLES: [&str; 2] = ["OPENVINO_DIR", "INTEL_OPENVINO_DIR"];

/// Number of searched folders: the executable's own and three above it, since `cargo test` runs in
/// `target/debug/deps`.
const FOLDERS_SEARCHED: usize = 4;

/// Folders of the libraries below a root: the root itself, Intel's archives, plain prefixes, Python packages.
const LAYOUTS: [&str; 6] = [
    "",
    "runtime/lib/intel64",
    "runtime/bin/intel64/Release",
    "lib",
    "libs",
    "openvino/libs",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn install(folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join(LIBRARY_FILES[0]), b"").unwrap();
    }

    fn with_variable(variable: &'static str, value: &Path) -> impl Fn(&str) -> Option<OsString> {
        let value = value.as_os_str().to_owned();
        move |name| (name == variable).then(|| value.clone())
    }

    #[test]
    fn every_layout_below_a_variable_is_found() {
        for layout in LAYOUTS {
            for variable in VARIABLES {
                let root = tempfile::tempdir().unwrap();
                let folder = root.path().join(layout);
                install(&folder);
                let found = search(&with_variable(variable, root.path()), None).unwrap();
                assert_eq!(found, folder, "layout `{layout}` through `{variable}`");
            }
        }
    }

    #[test]
    fn a_useless_variable_is_an_error_even_when_there_is_one_beside_the_executable() {
        let root = tempfile::tempdir().unwrap();
        install(&root.path().join("openvino-2026.4.1"));
        let executable = root.path().join("heg");
        let empty = root.path().join("empty");
        let error = search(&with_variable("OPENVINO_DIR", &empty), Some(&executable)).unwrap_err();
        let text = error.to_string();
        let start = format!(
            "environment variable `OPENVINO_DIR` is `{}`, which holds no OpenVINO library, \
             searched: `{}`",
            empty.display(),
            empty.display()
        );
        assert!(text.starts_with(&start), "{text}");
    }

    #[test]
    fn an_empty_variable_counts_as_not_set() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("openvino-2026.4.1");
        install(&folder);
        let found = search(&|_| Some(OsString::new()), Some(&root.path().join("heg"))).unwrap();
        assert_eq!(found, folder);
    }

    #[test]
    fn three_folders_above_the_executable_are_searched_and_no_more() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("openvino-2026.4.1/runtime/lib/intel64");
        install(&folder);
        let executable = root.path().join("target/debug/deps/heg");
        assert_eq!(search(&|_| None, Some(&executable)).unwrap(), folder);

        let deeper = root.path().join("target/debug/deps/deeper/heg");
        let error = search(&|_| None, Some(&deeper)).unwrap_err();
        let OpenvinoError::LibraryNotFound { searched } = &error else {
            panic!("{error}")
        };
        assert_eq!(searched.len(), FOLDERS_SEARCHED);
    }

    /// A user who can write to a folder above the executable could put a library there.
    #[cfg(unix)]
    #[test]
    fn libraries_that_others_could_change_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let above = root.path().join("above");
        let folder = above.join("openvino-2026.4.1");
        install(&folder);
        let library = folder.join(LIBRARY_FILES[0]);
        let executable = above.join("heg");
        let variable = with_variable("OPENVINO_DIR", &folder);
        for exposed in [&above, &folder, &library] {
            let mode = |mode| {
                std::fs::set_permissions(exposed, std::fs::Permissions::from_mode(mode)).unwrap();
            };
            mode(0o777);
            for error in [
                search(&|_| None, Some(&executable)).unwrap_err(),
                search(&variable, None).unwrap_err(),
            ] {
                assert!(
                    matches!(error, OpenvinoError::LibraryExposed { .. }),
                    "{error}"
                );
                let start = format!("OpenVINO in `{}` is not used", folder.display());
                assert!(error.to_string().starts_with(&start), "{error}");
            }
            mode(0o755);
        }
        assert_eq!(search(&|_| None, Some(&executable)).unwrap(), folder);
    }

    /// Only root can give files away.
    #[cfg(unix)]
    #[test]
    fn libraries_of_another_user_are_taken_from_the_owner_of_the_executable_only() {
        use std::os::unix::fs::chown;
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("openvino-2026.4.1");
        install(&folder);
        let executable = root.path().join("heg");
        std::fs::write(&executable, b"").unwrap();
        if chown(&folder, Some(12345), None).is_err() {
            return;
        }
        let error = search(&|_| None, Some(&executable)).unwrap_err();
        assert!(
            matches!(error, OpenvinoError::LibraryExposed { .. }),
            "{error}"
        );
        chown(&executable, Some(12345), None).unwrap();
        assert_eq!(search(&|_| None, Some(&executable)).unwrap(), folder);
        let named = with_variable("OPENVINO_DIR", &folder);
        assert_eq!(search(&named, None).unwrap(), folder);
    }

    #[test]
    fn nothing_to_search_is_still_an_error() {
        let error = search(&|_| None, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "OpenVINO `2026.4.1` not found, searched: nothing"
        );
    }

    #[cfg(unix)]
    #[test]
    fn the_library_is_named_after_the_version() {
        let digits: String = OPENVINO_VERSION[2..].split('.').collect();
        assert!(LIBRARY_FILES[0].contains(&digits), "{digits}");
    }
}
