//! Checked views into caller memory, in the form that OpenVINO takes.
//!
//! A [`Tensor`] is an address, a type and a shape, and it holds the memory into which it points.
//! Bounds, overflow and alignment are checked when it is created, never later. Rows are contiguous:
//! strides are not supported. Nothing is copied here.

use std::fmt;
use std::sync::Arc;

use openvino_sys::{
    ov_element_type_e, ov_shape_t, ov_tensor_create_from_host_ptr, ov_tensor_free, ov_tensor_t,
};

use crate::core::ensure_loaded;
use crate::error::OpenvinoError;
use crate::memory::{Access, Memory};
use crate::sys::Handle;

/// A view into caller memory that can be bound to an input or output, or give a model its weights.
///
/// Cheap to create (well under a microsecond): views into the KV cache are created for each call.
pub struct Tensor {
    // Declared before `memory`, so that OpenVINO's object is dropped first.
    handle: Handle<ov_tensor_t>,
    memory: Arc<dyn Memory>,
    offset_bytes: usize,
    element: TensorType,
    rank: usize,
    dims: [usize; RANK_MAX],
    bytes: usize,
}

impl Tensor {
    /// Creates a view of `memory` from `offset_bytes` on as elements of a shape, the last dimension
    /// contiguous.
    ///
    /// A dimension may be zero.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::OutOfBounds`], [`OpenvinoError::Misaligned`], [`OpenvinoError::ShapeOverflow`] or
    /// [`OpenvinoError::RankTooLarge`] if the view is not sound; [`OpenvinoError::NotLoaded`] before the first
    /// [`Core`](crate::Core) is loaded.
    pub fn new(
        memory: Arc<dyn Memory>,
        offset_bytes: usize,
        element: TensorType,
        shape: &[usize],
    ) -> Result<Self, OpenvinoError> {
        ensure_loaded()?;
        let rank = shape.len();
        if rank > RANK_MAX {
            return Err(OpenvinoError::RankTooLarge {
                rank,
                max: RANK_MAX,
            });
        }
        let bytes = shape_bytes(element, shape)?;
        let len = memory.len();
        if offset_bytes.checked_add(bytes).is_none_or(|end| end > len) {
            return Err(OpenvinoError::OutOfBounds {
                offset: offset_bytes,
                bytes,
                len,
            });
        }
        let address = memory.as_ptr().wrapping_add(offset_bytes);
        if !address.addr().is_multiple_of(element.bytes()) {
            return Err(OpenvinoError::Misaligned {
                offset: offset_bytes,
                align: element.bytes(),
            });
        }
        let mut dims = [0; RANK_MAX];
        dims[..rank].copy_from_slice(shape);
        // Every dimension fits: `shape_bytes` checked each of them against `i64`.
        let mut raw_dims = dims.map(|dim| dim as i64);
        let shape = ov_shape_t {
            rank: rank as i64,
            dims: raw_dims.as_mut_ptr(),
        };
        // SAFETY: `shape` points at `rank ≤ RANK_MAX` dimensions on this stack, which OpenVINO
        // copies during the call. The view `address..address + bytes` lies within memory that is
        // mapped as long as `memory` lives, and the tensor holds `memory`. If it is read-only,
        // OpenVINO does not write through the pointer, since `InferRequest::bind_output` refuses such a
        // tensor and inputs and weights are read. The new object is the handle's alone, to be freed
        // by `ov_tensor_free`.
        let handle = unsafe {
            Handle::create("ov_tensor_create_from_host_ptr", ov_tensor_free, |tensor| {
                let start = address.cast_mut().cast();
                ov_tensor_create_from_host_ptr(element.to_raw(), shape, start, tensor)
            })
        }?;
        Ok(Self {
            handle,
            memory,
            offset_bytes,
            element,
            rank,
            dims,
            bytes,
        })
    }

    /// Returns the type of the elements.
    pub fn element_type(&self) -> TensorType {
        self.element
    }

    /// Returns the shape given when the view was made.
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Returns the length of the view, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the access that OpenVINO may have to the memory.
    pub fn access(&self) -> Access {
        self.memory.access()
    }

    /// Returns whether both view the same bytes as elements of the same type and shape.
    pub(crate) fn is_same_view(&self, other: &Self) -> bool {
        self.start() == other.start()
            && self.element == other.element
            && self.shape() == other.shape()
    }

    /// Returns the pointer to the first byte of the view.
    pub(crate) fn start(&self) -> *const u8 {
        self.memory.as_ptr().wrapping_add(self.offset_bytes)
    }

    /// Returns the memory of the view, for uses that outlive the tensor.
    pub(crate) fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    pub(crate) fn as_raw(&self) -> *const ov_tensor_t {
        self.handle.as_ptr()
    }
}

// SAFETY: OpenVINO's object is a reference-counted view without ties to a thread; `memory` is
// `Send`.
unsafe impl Send for Tensor {}

// SAFETY: shared references only read fields fixed in `new`, and pass the object to calls that read it
// and copy its atomically counted reference. OpenVINO changes a view in one case, setting the shape of
// an output bound to a request; `InferRequest::bind_output` takes the tensor by value, so nobody shares
// it.
unsafe impl Sync for Tensor {}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{:?})", self.element, self.shape())
    }
}

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// Signed, 4 bits, two to a byte, the first in its low half.
    I4,
    /// Unsigned, 4 bits, two to a byte, the first in its low half.
    U4,
    /// Signed byte.
    I8,
    /// Byte.
    U8,
    /// IEEE half precision.
    F16,
    /// The upper half of IEEE single precision.
    Bf16,
    /// IEEE single precision.
    F32,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
}

impl TensorType {
    /// Returns the size of one element in bytes, which is also its alignment. An element of 4 bits
    /// shares its byte with a neighbour.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I4 | Self::U4 | Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    pub(crate) const fn to_raw(self) -> ov_element_type_e {
        match self {
            Self::I4 => ov_element_type_e::I4,
            Self::U4 => ov_element_type_e::U4,
            Self::I8 => ov_element_type_e::I8,
            Self::U8 => ov_element_type_e::U8,
            Self::F16 => ov_element_type_e::F16,
            Self::Bf16 => ov_element_type_e::BF16,
            Self::F32 => ov_element_type_e::F32,
            Self::I32 => ov_element_type_e::I32,
            Self::I64 => ov_element_type_e::I64,
        }
    }

    pub(crate) fn from_raw(raw: ov_element_type_e, port: &str) -> Result<Self, OpenvinoError> {
        match raw {
            ov_element_type_e::I4 => Ok(Self::I4),
            ov_element_type_e::U4 => Ok(Self::U4),
            ov_element_type_e::I8 => Ok(Self::I8),
            ov_element_type_e::U8 => Ok(Self::U8),
            ov_element_type_e::F16 => Ok(Self::F16),
            ov_element_type_e::BF16 => Ok(Self::Bf16),
            ov_element_type_e::F32 => Ok(Self::F32),
            ov_element_type_e::I32 => Ok(Self::I32),
            ov_element_type_e::I64 => Ok(Self::I64),
            other => Err(OpenvinoError::ElementTypeUnsupported {
                port: port.to_owned(),
                found: format!("{other:?}").to_lowercase(),
            }),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I4 => "i4",
            Self::U4 => "u4",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
    }
}

/// Maximum number of dimensions of a [`Tensor`]. Chosen, not measured; the kernels use four at most.
pub const RANK_MAX: usize = 8;

fn shape_bytes(element: TensorType, shape: &[usize]) -> Result<usize, OpenvinoError> {
    let overflow = || OpenvinoError::ShapeOverflow {
        element,
        shape: shape.to_owned(),
    };
    let mut bytes = element.bytes();
    for dim in shape {
        i64::try_from(*dim).map_err(|_| overflow())?;
        bytes = bytes.checked_mul(*dim).ok_or_else(overflow)?;
    }
    match element {
        TensorType::I4 | TensorType::U4 => Ok(bytes.div_ceil(2)),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_shape() {
        assert_eq!(shape_bytes(TensorType::F16, &[3, 5]).unwrap(), 30);
        assert_eq!(shape_bytes(TensorType::I64, &[]).unwrap(), 8);
        assert_eq!(shape_bytes(TensorType::F32, &[0, 7]).unwrap(), 0);
        assert_eq!(shape_bytes(TensorType::U4, &[3, 5]).unwrap(), 8);
    }

    #[test]
    fn a_shape_too_large_to_address_is_refused() {
        let check = |shape: &[usize], text: &str| {
            assert_eq!(
                shape_bytes(TensorType::F32, shape).unwrap_err().to_string(),
                text
            );
        };
        check(
            &[1 << 62, 4],
            "shape `[4611686018427387904, 4]` of `f32` is too large to address",
        );
        check(
            &[0, usize::MAX],
            "shape `[0, 18446744073709551615]` of `f32` is too large to address",
        );
    }

    #[test]
    fn types_survive_the_way_to_openvino_and_back() {
        use TensorType::{Bf16, F16, F32, I4, I8, I32, I64, U4, U8};
        for element in [I4, U4, I8, U8, F16, Bf16, F32, I32, I64] {
            assert_eq!(
                TensorType::from_raw(element.to_raw(), "x").unwrap(),
                element
            );
        }
        let error = TensorType::from_raw(ov_element_type_e::F64, "x").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`x` has elements of unsupported type `f64`"
        );
    }
}
