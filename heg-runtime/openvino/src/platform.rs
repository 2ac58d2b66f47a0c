//! The differences between operating systems: the names of OpenVINO's libraries and an NPU's, and paths for the C
//! interface.

use std::ffi::CString;
use std::path::Path;

use crate::error::OpenvinoError;

/// Names of the C library's file, the exact release first, which is the only one in Python wheels.
pub(crate) const LIBRARY_FILES: &[&str] = if cfg!(target_os = "windows") {
    &["openvino_c.dll"]
} else if cfg!(target_os = "macos") {
    &["libopenvino_c.2641.dylib", "libopenvino_c.dylib"]
} else {
    &["libopenvino_c.so.2641", "libopenvino_c.so"]
};

/// Names of Level Zero's loader, which the NPU's plugin opens.
pub(crate) const NPU_LOADER: &[&str] = if cfg!(target_os = "windows") {
    &["ze_loader.dll"]
} else {
    &["libze_loader.so.1"]
};

/// Names of the NPU's driver, the newer one first, which the loader opens. On Windows it finds that in its registry.
pub(crate) const NPU_DRIVER: &[&str] = if cfg!(target_os = "windows") {
    &[]
} else {
    &["libze_intel_npu.so.1", "libze_intel_vpu.so.1"]
};

/// Folders of the system's libraries.
pub(crate) const SYSTEM_FOLDERS: &[&str] = if cfg!(target_os = "windows") {
    &["C:\\Windows\\System32"]
} else {
    &[
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ]
};

/// Converts a path to the form that the C interface takes: the system's own bytes.
#[cfg(unix)]
pub(crate) fn c_path(path: &Path) -> Result<CString, OpenvinoError> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(|_| OpenvinoError::ZeroByte {
        what: "path",
        text: path.display().to_string(),
    })
}

/// Converts a path to the form that the C interface takes: UTF-8, which OpenVINO widens.
#[cfg(not(unix))]
pub(crate) fn c_path(path: &Path) -> Result<CString, OpenvinoError> {
    crate::sys::c_string("path", &path.to_string_lossy())
}
