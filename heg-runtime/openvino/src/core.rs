//! The loaded library: devices, their properties, and the creation of models.
//!
//! A process loads OpenVINO once; each [`Core`] then has its own set of device plugins. One core
//! per process is the rule. Only functions without variable arguments are called: `openvino-sys`
//! declares variadic ones with a fixed number of arguments, which is not how they are called.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use heg_files::FileError;
use openvino_sys::{
    ov_available_devices_free, ov_available_devices_t, ov_compiled_model_free,
    ov_core_compile_model_props, ov_core_create, ov_core_free, ov_core_get_available_devices,
    ov_core_get_property, ov_core_import_model, ov_core_read_model_from_memory_buffer,
    ov_core_set_properties, ov_core_t, ov_get_openvino_version, ov_model_free, ov_version_free,
    ov_version_t,
};

use crate::error::OpenvinoError;
use crate::level_zero::NpuFiles;
use crate::locate::{OPENVINO_VERSION, find_libraries, library_file};
use crate::model::{CompiledModel, Model};
use crate::npu_driver::NpuDriver;
use crate::properties::Properties;
use crate::sys::{Handle, c_string, check, take_string};
use crate::tensor::{Tensor, TensorType};

/// OpenVINO with its device plugins. Clones share them.
#[derive(Clone)]
pub struct Core {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Handle<ov_core_t>,
    version: String,
    /// Folder of the libraries.
    folder: PathBuf,
    /// Files of the machine's NPU; looked for once.
    npu: OnceLock<NpuAccess>,
}

/// The way to an NPU.
struct NpuAccess {
    files: NpuFiles,
    /// The library that others could change, if there is one, and the problem with it.
    exposed: Option<(PathBuf, Arc<FileError>)>,
}

impl Core {
    /// Loads OpenVINO from the folder that [`find_libraries`] finds.
    ///
    /// # Errors
    ///
    /// The errors of [`find_libraries`] and [`load_from`](Self::load_from).
    pub fn load() -> Result<Self, OpenvinoError> {
        Self::load_from(&find_libraries()?)
    }

    /// Loads OpenVINO from the folder that holds its libraries.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::LibraryNotFound`] or [`OpenvinoError::LibraryUnusable`] when there is nothing to load,
    /// [`OpenvinoError::VersionMismatch`] when it is not of the release that this crate was written for,
    /// [`OpenvinoError::AlreadyLoaded`] when this process uses another one.
    pub fn load_from(folder: &Path) -> Result<Self, OpenvinoError> {
        let version = load_library(folder)?;
        // SAFETY: the function stores a new core that is the handle's alone, to be freed by
        // `ov_core_free`.
        let handle =
            unsafe { Handle::create("ov_core_create", ov_core_free, |core| ov_core_create(core)) }?;
        Ok(Self {
            inner: Arc::new(Inner {
                handle,
                version,
                folder: folder.to_owned(),
                npu: OnceLock::new(),
            }),
        })
    }

    /// Returns the files that the machine has for an NPU.
    pub fn npu_files(&self) -> &NpuFiles {
        &self.npu().files
    }

    /// Returns what the driver of the first NPU says of itself; `None` if there is none, or one that others could change.
    pub fn npu_driver(&self) -> Option<NpuDriver> {
        let npu = self.npu();
        npu.exposed.is_none().then(|| NpuDriver::of(&npu.files))?
    }

    fn npu(&self) -> &NpuAccess {
        self.inner.npu.get_or_init(|| {
            let folder = &self.inner.folder;
            let files = NpuFiles::find(Some(folder));
            let exposed = files.check(Some(folder)).err();
            let exposed = exposed.map(|(library, error)| (library, Arc::new(error)));
            NpuAccess { files, exposed }
        })
    }

    /// Checks the libraries that a plugin opens, before anything makes it do so.
    pub(crate) fn admit(&self, device: &str) -> Result<(), OpenvinoError> {
        // Virtual devices such as `AUTO` may choose an NPU.
        let is_safe = ["CPU", "GPU"].iter().any(|safe| device.starts_with(safe));
        match &self.npu().exposed {
            Some((library, source)) if !is_safe => Err(OpenvinoError::NpuLibraryExposed {
                library: library.clone(),
                source: Arc::clone(source),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the version of the library, with its build number.
    pub fn version(&self) -> &str {
        &self.inner.version
    }

    /// Returns the devices that can run something now, such as `CPU`, `GPU.0`, `NPU`.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if a plugin cannot be asked, [`OpenvinoError::NpuLibraryExposed`] if one may not be.
    pub fn available_devices(&self) -> Result<Vec<String>, OpenvinoError> {
        self.admit("")?;
        let mut list = ov_available_devices_t {
            devices: ptr::null_mut(),
            size: 0,
        };
        // SAFETY: the core lives, and `list` is valid for a write.
        let status = unsafe { ov_core_get_available_devices(self.raw(), &raw mut list) };
        check("ov_core_get_available_devices", status)?;
        let names = (0..list.size).map(|index| {
            // SAFETY: after success `devices` has `size` entries, each a zero-terminated string
            // that lives until the list is freed below.
            let name = unsafe { CStr::from_ptr(*list.devices.add(index)) };
            name.to_string_lossy().into_owned()
        });
        let names = names.collect();
        // SAFETY: filled by the call above and freed once; the names are copied.
        unsafe { ov_available_devices_free(&raw mut list) };
        Ok(names)
    }

    /// Returns a property of a device, as text.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] when there is no such device or property.
    pub fn device_property(&self, device: &str, name: &str) -> Result<String, OpenvinoError> {
        self.admit(device)?;
        let device = c_string("device", device)?;
        let name = c_string("property name", name)?;
        let mut value = ptr::null_mut();
        // SAFETY: the core and both strings live through the call, and `value` is valid for a
        // write.
        let status = unsafe {
            ov_core_get_property(self.raw(), device.as_ptr(), name.as_ptr(), &raw mut value)
        };
        check("ov_core_get_property", status)?;
        // SAFETY: after success `value` is a string allocated for the caller, used nowhere else.
        Ok(unsafe { take_string(value) })
    }

    /// Sets a property of a device for everything compiled or imported afterwards.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if the device refuses, [`OpenvinoError::PointerProperty`] if the value cannot be
    /// text.
    pub fn set_property(&self, device: &str, name: &str, value: &str) -> Result<(), OpenvinoError> {
        self.admit(device)?;
        let device = c_string("device", device)?;
        let properties = Properties::new(&[(name, value)])?;
        // SAFETY: the core, the device name and the properties live through the call, which copies
        // them; the count is the array's.
        let status = unsafe {
            let (count, first) = properties.as_raw();
            ov_core_set_properties(self.raw(), device.as_ptr(), count, first)
        };
        check("ov_core_set_properties", status)
    }

    /// Reads a model from its text, with constants that point into `weights`.
    ///
    /// `weights` is a view of bytes ([`TensorType::U8`]); offsets in the text count from its start.
    /// The bytes must not change any more: plugins may read constants until the last request is
    /// gone.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] when the text is not a model, [`OpenvinoError::ElementTypeMismatch`] when the
    /// weights are not bytes.
    pub fn read_model(&self, xml: &[u8], weights: Option<&Tensor>) -> Result<Model, OpenvinoError> {
        if let Some(weights) = weights {
            require_bytes("weights", weights)?;
        }
        let raw_weights = weights.map_or(ptr::null(), Tensor::as_raw);
        // SAFETY: core, text and tensor live through the call. The text is copied; the model's
        // constants keep pointing into the weights, whose memory `Model` holds. The new model is
        // the handle's alone, to be freed by `ov_model_free`.
        let handle = unsafe {
            Handle::create(
                "ov_core_read_model_from_memory_buffer",
                ov_model_free,
                |model| {
                    let text = xml.as_ptr().cast();
                    ov_core_read_model_from_memory_buffer(
                        self.raw(),
                        text,
                        xml.len(),
                        raw_weights,
                        model,
                    )
                },
            )
        }?;
        let memory = weights.map(|weights| Arc::clone(weights.memory()));
        Ok(Model::new(handle, memory))
    }

    /// Compiles a model for a device, with properties for this model only.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] when the device refuses the model or a property,
    /// [`OpenvinoError::ElementTypeUnsupported`] when a port has elements that this crate does not pass on.
    pub fn compile(
        &self,
        model: &Model,
        device: &str,
        properties: &[(&str, &str)],
    ) -> Result<CompiledModel, OpenvinoError> {
        self.admit(device)?;
        let device = c_string("device", device)?;
        let properties = Properties::new(properties)?;
        // SAFETY: core, model, device name and properties live through the call; the count is the
        // array's. What is compiled may keep pointing into the model's weights, whose memory
        // `CompiledModel` holds. The new object is the handle's alone, to be freed as named.
        let handle = unsafe {
            Handle::create(
                "ov_core_compile_model_props",
                ov_compiled_model_free,
                |compiled| {
                    let (core, model) = (self.raw(), model.as_raw());
                    let (count, first) = properties.as_raw();
                    ov_core_compile_model_props(
                        core,
                        model,
                        device.as_ptr(),
                        count,
                        first,
                        compiled,
                    )
                },
            )
        }?;
        CompiledModel::new(handle, model.memory().cloned(), self.clone())
    }

    /// Loads a model that [`CompiledModel::export_to`] wrote, from a view of its bytes.
    ///
    /// The device may keep pointing into `blob`, so it is held as weights are. The C interface
    /// takes no properties here: set them on the device before.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if the device refuses the blob, [`OpenvinoError::ElementTypeMismatch`] if the view
    /// is not one of bytes.
    pub fn import(&self, blob: &Tensor, device: &str) -> Result<CompiledModel, OpenvinoError> {
        require_bytes("blob", blob)?;
        self.admit(device)?;
        let device = c_string("device", device)?;
        // SAFETY: the view was checked to lie in memory that is mapped while the tensor lives, and
        // `CompiledModel` holds that memory too, for a device that keeps pointing into it. Core and
        // name live through the call. The new object is the handle's alone, to be freed as named.
        let handle = unsafe {
            Handle::create("ov_core_import_model", ov_compiled_model_free, |compiled| {
                let start = blob.start().cast();
                ov_core_import_model(self.raw(), start, blob.bytes(), device.as_ptr(), compiled)
            })
        }?;
        CompiledModel::new(handle, Some(Arc::clone(blob.memory())), self.clone())
    }

    fn raw(&self) -> *const ov_core_t {
        self.inner.handle.as_ptr()
    }

    /// Returns the object for calls of other modules, valid as long as this lives.
    pub(crate) fn as_raw(&self) -> *const ov_core_t {
        self.raw()
    }
}

// SAFETY: `ov::Core` may be used from several threads: it guards its registry of plugins and their
// configuration with mutexes of its own. Here it is only passed to calls that take it as constant;
// it is freed by the last clone, when nobody else can call.
unsafe impl Send for Inner {}

// SAFETY: as above.
unsafe impl Sync for Inner {}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("version", &self.inner.version)
            .finish_non_exhaustive()
    }
}

/// Checks that a [`Core`] has been loaded; `openvino-sys` panics on calls before that.
pub(crate) fn ensure_loaded() -> Result<(), OpenvinoError> {
    if LOADED.load(Ordering::Acquire) {
        Ok(())
    } else {
        Err(OpenvinoError::NotLoaded)
    }
}

fn require_bytes(what: &'static str, tensor: &Tensor) -> Result<(), OpenvinoError> {
    let (expected, found) = (TensorType::U8, tensor.element_type());
    if expected == found {
        return Ok(());
    }
    Err(OpenvinoError::ElementTypeMismatch {
        port: what.to_owned(),
        expected,
        found,
    })
}

/// Loads the library unless this process has it already; returns its version.
fn load_library(folder: &Path) -> Result<String, OpenvinoError> {
    let path = library_file(folder).ok_or_else(|| OpenvinoError::LibraryNotFound {
        searched: vec![folder.to_owned()],
    })?;
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(loaded) = library.as_ref().filter(|loaded| **loaded != path) {
        return Err(OpenvinoError::AlreadyLoaded {
            loaded: loaded.clone(),
            requested: path,
        });
    }
    // `openvino-sys` panics if a library has no version, or one that is not made of numbers.
    let outcome = std::panic::catch_unwind(|| openvino_sys::library::load_from(&path))
        .unwrap_or_else(|_| Err("not a release of OpenVINO".to_owned()));
    outcome.map_err(|message| OpenvinoError::LibraryUnusable {
        path: path.clone(),
        message,
    })?;
    let found = version()?;
    if !same_release(&found) {
        return Err(OpenvinoError::VersionMismatch {
            path,
            expected: OPENVINO_VERSION,
            found,
        });
    }
    *library = Some(path);
    LOADED.store(true, Ordering::Release);
    Ok(found)
}

fn version() -> Result<String, OpenvinoError> {
    let mut version = ov_version_t {
        buildNumber: ptr::null(),
        description: ptr::null(),
    };
    // SAFETY: the library is loaded, and `version` is valid for a write.
    check("ov_get_openvino_version", unsafe {
        ov_get_openvino_version(&raw mut version)
    })?;
    // SAFETY: after success the build number is a zero-terminated string, valid until freed below.
    let number = unsafe { CStr::from_ptr(version.buildNumber) };
    let number = number.to_string_lossy().into_owned();
    // SAFETY: filled by the call above and freed once; the number is copied.
    unsafe { ov_version_free(&raw mut version) };
    Ok(number)
}

/// Returns whether year and release agree: status codes and element types are enumerations of the
/// release, and a value unknown to `openvino-sys` would be an invalid enumeration value. Patches do
/// not change them.
fn same_release(found: &str) -> bool {
    let release = |version: &str| -> Vec<String> {
        version
            .split(['.', '-'])
            .take(2)
            .map(str::to_owned)
            .collect()
    };
    release(found) == release(OPENVINO_VERSION)
}

/// The library of this process, set after one has loaded and passed its checks.
static LIBRARY: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Whether [`LIBRARY`] is set, for code that creates tensors in a hot path.
static LOADED: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_release_this_was_written_for_is_accepted() {
        for (version, accepted) in [
            ("2026.4.1-22982-e213a147257-releases/2026/4", true),
            ("2026.4.2-1", true),
            ("2026.40.1", false),
            ("2026.3.0", false),
            ("2025.4.1", false),
            ("custom", false),
        ] {
            assert_eq!(same_release(version), accepted, "{version}");
        }
    }

    #[test]
    fn a_folder_without_the_library_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let error = Core::load_from(folder.path()).unwrap_err();
        assert!(
            matches!(error, OpenvinoError::LibraryNotFound { .. }),
            "{error}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_no_library_cannot_be_loaded() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libopenvino_c.so"), b"not a library").unwrap();
        let text = Core::load_from(folder.path()).unwrap_err().to_string();
        assert!(
            text.starts_with("cannot load `") && text.contains("libopenvino_c.so"),
            "{text}"
        );
    }
}
