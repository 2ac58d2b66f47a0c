//! A model as read, and as compiled for a device.
//!
//! Both hold the memory of their weights: constants are pointers into it, all the way into the
//! device plugin. `core.rs` reads and compiles models, `port.rs` describes their ports.

use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openvino_sys::{
    ov_compiled_model_create_infer_request, ov_compiled_model_export_model,
    ov_compiled_model_get_property, ov_compiled_model_set_properties, ov_compiled_model_t,
    ov_infer_request_free, ov_infer_request_t, ov_model_t,
};

use crate::core::Core;
use crate::error::OpenvinoError;
use crate::memory::Memory;
use crate::platform::c_path;
use crate::port::{INPUTS, OUTPUTS, PortInfo, read_ports};
use crate::properties::Properties;
use crate::request::InferRequest;
use crate::sys::{Handle, c_string, check, take_string};

/// A model as read from its text: the result of [`Core::read_model`], and the input of
/// [`Core::compile`].
pub struct Model {
    // Declared before `weights`, so that OpenVINO's object is dropped first.
    handle: Handle<ov_model_t>,
    weights: Option<Arc<dyn Memory>>,
}

impl Model {
    pub(crate) fn new(handle: Handle<ov_model_t>, weights: Option<Arc<dyn Memory>>) -> Self {
        Self { handle, weights }
    }

    pub(crate) fn as_raw(&self) -> *const ov_model_t {
        self.handle.as_ptr()
    }

    pub(crate) fn memory(&self) -> Option<&Arc<dyn Memory>> {
        self.weights.as_ref()
    }
}

// SAFETY: the object is a graph behind an atomically counted reference, without ties to a thread.
// It is not `Sync`: nothing says that two threads may compile the same graph at once.
unsafe impl Send for Model {}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").finish_non_exhaustive()
    }
}

/// A model compiled for a device. Clones share it.
#[derive(Clone)]
pub struct CompiledModel {
    inner: Arc<Inner>,
}

/// Fields are dropped in this order: OpenVINO's object, the memory into which it points, the core
/// that made it.
struct Inner {
    handle: Handle<ov_compiled_model_t>,
    _memory: Option<Arc<dyn Memory>>,
    _core: Core,
    inputs: Vec<PortInfo>,
    outputs: Vec<PortInfo>,
    /// Held while a property is changed or read.
    properties: Mutex<()>,
}

impl CompiledModel {
    pub(crate) fn new(
        handle: Handle<ov_compiled_model_t>,
        memory: Option<Arc<dyn Memory>>,
        core: Core,
    ) -> Result<Self, OpenvinoError> {
        let inputs = read_ports(&handle, &INPUTS)?;
        let outputs = read_ports(&handle, &OUTPUTS)?;
        let inner = Inner {
            handle,
            _memory: memory,
            _core: core,
            inputs,
            outputs,
            properties: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Inputs, in the order of their indices.
    pub fn inputs(&self) -> &[PortInfo] {
        &self.inner.inputs
    }

    /// Outputs, in the order of their indices.
    pub fn outputs(&self) -> &[PortInfo] {
        &self.inner.outputs
    }

    /// Returns a property with which the model was compiled, or that describes it, as text.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] when the device has no such property.
    pub fn property(&self, name: &str) -> Result<String, OpenvinoError> {
        let name = c_string("property name", name)?;
        let _alone = self.properties();
        let mut value = ptr::null_mut();
        // SAFETY: model and name live through the call, and `value` is valid for a write.
        let status =
            unsafe { ov_compiled_model_get_property(self.raw(), name.as_ptr(), &raw mut value) };
        check("ov_compiled_model_get_property", status)?;
        // SAFETY: after success `value` is a string allocated for the caller, used nowhere else.
        Ok(unsafe { take_string(value) })
    }

    /// Changes a property of the compiled model, for the inferences from now on.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if the device has no such property or can change it only by compiling,
    /// [`OpenvinoError::PointerProperty`] if the value cannot be text.
    pub fn set_property(&self, name: &str, value: &str) -> Result<(), OpenvinoError> {
        let properties = Properties::new(&[(name, value)])?;
        let _alone = self.properties();
        // SAFETY: model and properties live through the call, which copies them; the count is the
        // array's. No other call of ours changes or reads properties meanwhile.
        let status = unsafe {
            let (count, first) = properties.as_raw();
            ov_compiled_model_set_properties(self.raw(), count, first)
        };
        check("ov_compiled_model_set_properties", status)
    }

    /// Exports the model to a file, for [`Core::import`]; replaces an existing file.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Io`] if the file cannot be created, [`OpenvinoError::Call`] if the device cannot export.
    pub fn export_to(&self, path: &Path) -> Result<(), OpenvinoError> {
        // OpenVINO does not say why it cannot open a file, so the file is created here.
        std::fs::File::create(path).map_err(|source| OpenvinoError::Io {
            path: path.to_owned(),
            source,
        })?;
        let c_path = c_path(path)?;
        // SAFETY: model and path live through the call.
        let status = unsafe { ov_compiled_model_export_model(self.raw(), c_path.as_ptr()) };
        check("ov_compiled_model_export_model", status)
    }

    /// Creates a request, with nothing bound.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if the device has no room for another.
    pub fn request(&self) -> Result<InferRequest, OpenvinoError> {
        let function = "ov_compiled_model_create_infer_request";
        // SAFETY: the model lives through the call. The new request is the handle's alone, to be
        // freed as named.
        let handle: Handle<ov_infer_request_t> = unsafe {
            Handle::create(function, ov_infer_request_free, |request| {
                ov_compiled_model_create_infer_request(self.raw(), request)
            })
        }?;
        InferRequest::new(handle, self.clone())
    }

    /// Locks the properties against other readers and writers: not every plugin guards them.
    fn properties(&self) -> MutexGuard<'_, ()> {
        let properties = &self.inner.properties;
        properties.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raw(&self) -> *const ov_compiled_model_t {
        self.inner.handle.as_ptr()
    }
}

// SAFETY: a compiled model is constant after compilation but for its properties, and is meant to
// make requests for several threads; plugins guard the streams and counters behind it. Here it is
// only passed to calls that take it as constant, those on properties one at a time, and freed by
// the last clone, when nobody else can call. `_memory` and `_core` are `Send` and `Sync` by
// themselves.
unsafe impl Send for Inner {}

// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for CompiledModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledModel")
            .field("inputs", &self.inner.inputs)
            .field("outputs", &self.inner.outputs)
            .finish_non_exhaustive()
    }
}
