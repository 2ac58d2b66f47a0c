//! The result of an output, in memory of OpenVINO or of the caller.
//!
//! Results are only copied: the memory may be the caller's, and other requests may write it too. A
//! result for another kernel is not read here; the caller binds one memory to both.

use std::marker::PhantomData;
use std::ptr;

use openvino_sys::{
    ov_element_type_e, ov_shape_free, ov_shape_t, ov_tensor_data, ov_tensor_get_element_type,
    ov_tensor_get_shape, ov_tensor_t,
};

use crate::error::OpenvinoError;
use crate::memory::{copy_from_shared, f32_bytes_mut};
use crate::port::PortInfo;
use crate::request::InferRequest;
use crate::sys::{Handle, check};
use crate::tensor::TensorType;

/// The result of an output. The request cannot run again while this exists.
pub struct Output<'request> {
    handle: Handle<ov_tensor_t>,
    name: String,
    raw_element: ov_element_type_e,
    shape: Vec<usize>,
    request: PhantomData<&'request InferRequest>,
}

impl Output<'_> {
    pub(crate) fn new(handle: Handle<ov_tensor_t>, port: &PortInfo) -> Result<Self, OpenvinoError> {
        let mut raw_element = ov_element_type_e::DYNAMIC;
        // SAFETY: the tensor lives, and `raw_element` is valid for a write.
        let status = unsafe { ov_tensor_get_element_type(handle.as_ptr(), &raw mut raw_element) };
        check("ov_tensor_get_element_type", status)?;
        let shape = read_shape(&handle)?;
        Ok(Self {
            handle,
            name: port.name.clone(),
            raw_element,
            shape,
            request: PhantomData,
        })
    }

    /// Returns the shape of the result; a dynamic shape is decided only by the run.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Copies the result into a new vector.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::ElementTypeMismatch`] when it is not of `f32`, or [`OpenvinoError::Call`].
    pub fn to_f32(&self) -> Result<Vec<f32>, OpenvinoError> {
        let mut values = vec![0.0; self.elements()];
        self.read_f32(&mut values)?;
        Ok(values)
    }

    /// Copies the result into `into`, which must have the same number of elements.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::LengthMismatch`], [`OpenvinoError::ElementTypeMismatch`] if it is not of `f32`, or
    /// [`OpenvinoError::Call`].
    pub fn read_f32(&self, into: &mut [f32]) -> Result<(), OpenvinoError> {
        let found = TensorType::from_raw(self.raw_element, &self.name)?;
        let expected = TensorType::F32;
        if found != expected {
            return Err(OpenvinoError::ElementTypeMismatch {
                port: self.name.clone(),
                expected,
                found,
            });
        }
        let (expected, found) = (into.len(), self.elements());
        if found != expected {
            return Err(OpenvinoError::LengthMismatch {
                unit: "elements",
                expected,
                found,
            });
        }
        let mut data = ptr::null_mut();
        // SAFETY: the tensor lives, and `data` is valid for a write.
        let status = unsafe { ov_tensor_data(self.handle.as_ptr(), &raw mut data) };
        check("ov_tensor_data", status)?;
        if found > 0 && !data.is_null() {
            // SAFETY: `data` points at the tensor's elements, as many `f32` as `into` has, in
            // memory that OpenVINO writes results to, so writable; it stays until the request binds
            // or runs again, which the borrow of the request excludes. Memory of the caller is held
            // by the request, and changed by Rust only through copies of `Memory` implementations,
            // which treat it as shared with a device.
            unsafe { copy_from_shared(data.cast::<u8>(), f32_bytes_mut(into)) };
        }
        Ok(())
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

fn read_shape(tensor: &Handle<ov_tensor_t>) -> Result<Vec<usize>, OpenvinoError> {
    let mut shape = ov_shape_t {
        rank: 0,
        dims: ptr::null_mut(),
    };
    // SAFETY: the tensor lives, and `shape` is valid for a write.
    let status = unsafe { ov_tensor_get_shape(tensor.as_ptr(), &raw mut shape) };
    check("ov_tensor_get_shape", status)?;
    let rank = usize::try_from(shape.rank).unwrap_or(0);
    // SAFETY: after success `dims` has `rank` entries, which live until freed below; `index <
    // rank`.
    let dim = |index| unsafe { *shape.dims.add(index) };
    let dims = (0..rank)
        .map(|index| usize::try_from(dim(index)).unwrap_or(0))
        .collect();
    // SAFETY: filled by the call above and freed once; the dimensions are copied.
    let status = unsafe { ov_shape_free(&raw mut shape) };
    check("ov_shape_free", status)?;
    Ok(dims)
}
