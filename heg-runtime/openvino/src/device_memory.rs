//! Memory on which a device works without a copy: lent to it once, or its own.
//!
//! A plugin that copies or imports what is bound to a request does so again for each inference. It does neither for
//! bytes inside memory that its device already knows. So memory is made known once, and tensors in it are bound as all
//! others are; `memory.rs` says what the NPU's plugin does with the rest.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use openvino_sys::{
    ov_core_get_default_context, ov_element_type_e, ov_property_t,
    ov_remote_context_create_host_tensor, ov_remote_context_create_tensor_props,
    ov_remote_context_free, ov_remote_context_t, ov_shape_t, ov_tensor_data, ov_tensor_free,
    ov_tensor_t,
};

use crate::core::Core;
use crate::error::OpenvinoError;
use crate::memory::{Access, Memory};
use crate::sys::{Handle, c_string, check};

/// The memory of a device, as its plugin sees it. Clones share it.
#[derive(Clone)]
pub struct DeviceMemory {
    inner: Arc<Inner>,
}

/// Fields are dropped in this order: OpenVINO's object, then the core that made it.
struct Inner {
    context: Handle<ov_remote_context_t>,
    device: String,
    core: Core,
    /// Held while memory is lent or allocated: nothing says that two threads may ask a context at once.
    asking: Mutex<()>,
}

impl DeviceMemory {
    /// Returns the memory of a device, such as `NPU`.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if there is no such device, or its plugin shares no memory.
    pub fn of(core: &Core, device: &str) -> Result<Self, OpenvinoError> {
        core.admit(device)?;
        let name = c_string("device", device)?;
        let function = "ov_core_get_default_context";
        // SAFETY: core and name live through the call. The new context is the handle's alone, to be freed as named.
        let context = unsafe {
            Handle::create(function, ov_remote_context_free, |context| {
                ov_core_get_default_context(core.as_raw(), name.as_ptr(), context)
            })
        }?;
        let inner = Inner {
            context,
            device: device.to_owned(),
            core: core.clone(),
            asking: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Name of the device.
    pub fn device(&self) -> &str {
        &self.inner.device
    }

    /// Lends all of `memory` to the device until the loan is dropped: for inputs alone where it is read-only.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if the device takes no memory of others, or not this one.
    pub fn lend(&self, memory: Arc<dyn Memory>) -> Result<Loan, OpenvinoError> {
        // SAFETY: the range is mapped as long as `memory` lives, and the loan holds it; it is lent with the access that
        // the memory permits.
        let range = unsafe { self.lend_range(memory.as_ptr(), memory.len(), memory.access()) }?;
        Ok(Loan {
            _range: range,
            memory,
        })
    }

    /// Lends a range to the device until the loan is dropped.
    ///
    /// # Safety
    ///
    /// The range stays mapped until then, readable, and writable if `access` says so.
    pub(crate) unsafe fn lend_range(
        &self,
        start: *const u8,
        bytes: usize,
        access: Access,
    ) -> Result<RangeLoan, OpenvinoError> {
        // The driver asks the kernel for writable pages, which a read-only mapping does not have, but for tensors that
        // are only read (linux-npu-driver 1.32.1, `importUserPtr`).
        let kind = match access {
            Access::ReadOnly => c"INPUT",
            Access::ReadWrite => c"BINDED",
        };
        let text = |key: &'static CStr, value: &'static CStr| ov_property_t {
            key: key.as_ptr(),
            value: value.as_ptr().cast::<c_void>(),
        };
        let handle = ov_property_t {
            key: c"MEM_HANDLE".as_ptr(),
            value: start.cast::<c_void>(),
        };
        let pairs = [
            text(c"MEM_TYPE", c"CPU_VA"),
            handle,
            text(c"TENSOR_TYPE", kind),
        ];
        let function = "ov_remote_context_create_tensor_props";
        let create = |shape, tensor| {
            // SAFETY: the context lives, `shape` and `pairs` live through the call, which copies them; the count is the
            // array's. `MEM_HANDLE` takes an address as its value, the other keys take text. By the caller's promise the
            // range stays mapped as long as the tensor that is made here.
            unsafe {
                ov_remote_context_create_tensor_props(
                    self.context(),
                    ov_element_type_e::U8,
                    shape,
                    pairs.len(),
                    pairs.as_ptr(),
                    tensor,
                )
            }
        };
        let tensor = self.tensor(function, bytes, create)?;
        Ok(RangeLoan {
            _tensor: tensor,
            _device: self.clone(),
        })
    }

    /// Allocates zeroed memory of the device's, which this process can read and write too.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<DevicePages, OpenvinoError> {
        let function = "ov_remote_context_create_host_tensor";
        let create = |shape, tensor| {
            // SAFETY: the context lives, and `shape` lives through the call, which copies it.
            unsafe {
                let element = ov_element_type_e::U8;
                ov_remote_context_create_host_tensor(self.context(), element, shape, tensor)
            }
        };
        let tensor = self.tensor(function, bytes.max(1), create)?;
        let mut data = ptr::null_mut();
        // SAFETY: the tensor lives, and `data` is valid for a write.
        check("ov_tensor_data", unsafe {
            ov_tensor_data(tensor.as_ptr(), &raw mut data)
        })?;
        let start = NonNull::new(data.cast::<u8>()).ok_or(OpenvinoError::Allocation { bytes })?;
        // SAFETY: the tensor has at least `bytes` bytes from `start` on, which are its own and writable; nobody else has
        // the address yet.
        unsafe { ptr::write_bytes(start.as_ptr(), 0, bytes) };
        Ok(DevicePages {
            start,
            _tensor: tensor,
            _device: self.clone(),
        })
    }

    /// Makes a tensor of a number of bytes.
    fn tensor(
        &self,
        function: &'static str,
        bytes: usize,
        create: impl FnOnce(ov_shape_t, *mut *mut ov_tensor_t) -> openvino_sys::ov_status_e,
    ) -> Result<Handle<ov_tensor_t>, OpenvinoError> {
        let mut dims = [i64::try_from(bytes).map_err(|_| OpenvinoError::Allocation { bytes })?];
        let shape = ov_shape_t {
            rank: 1,
            dims: dims.as_mut_ptr(),
        };
        let asking = &self.inner.asking;
        let _alone = asking.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `create` stores a new tensor that is the handle's alone, to be freed by `ov_tensor_free`.
        unsafe { Handle::create(function, ov_tensor_free, |tensor| create(shape, tensor)) }
    }

    fn context(&self) -> *const ov_remote_context_t {
        self.inner.context.as_ptr()
    }
}

// SAFETY: a context is a counted reference without ties to a thread; it is asked by one thread at a time (`asking`), and
// freed by the last clone, when nobody else can ask. `core` is `Send` and `Sync` by itself.
unsafe impl Send for Inner {}

// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { device, core, .. } = &*self.inner;
        f.debug_struct("DeviceMemory")
            .field("device", device)
            .field("core", core)
            .finish_non_exhaustive()
    }
}

/// Memory that a device knows until this is dropped.
pub struct Loan {
    // Declared before `memory`, so that the loan ends first.
    _range: RangeLoan,
    memory: Arc<dyn Memory>,
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({} bytes)", self.memory.len())
    }
}

/// A range that a device knows until this is dropped, and that is kept mapped by its owner.
pub(crate) struct RangeLoan {
    // Declared before `_device`, so that OpenVINO's object is dropped before the context.
    _tensor: Handle<ov_tensor_t>,
    _device: DeviceMemory,
}

// SAFETY: the tensor is a counted reference without ties to a thread; it is only held, and dropped once.
unsafe impl Send for RangeLoan {}

// SAFETY: as above: no call takes it while it is shared.
unsafe impl Sync for RangeLoan {}

/// Memory that a device's plugin allocated, at an address that never changes.
pub(crate) struct DevicePages {
    start: NonNull<u8>,
    _tensor: Handle<ov_tensor_t>,
    _device: DeviceMemory,
}

impl DevicePages {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

// SAFETY: the address is that of memory which the tensor owns, as long as this lives; it is accessed as shared memory is,
// by the owner of this. The tensor is only held, and dropped once.
unsafe impl Send for DevicePages {}

// SAFETY: as above.
unsafe impl Sync for DevicePages {}
