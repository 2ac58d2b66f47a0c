//! Inputs and outputs of a compiled model: name, element type, shape.
//!
//! Read once, when a model is compiled, so that binding can check a tensor and name both sides of a
//! mismatch without asking OpenVINO.

use std::fmt;
use std::ptr;

use openvino_sys::{
    ov_compiled_model_input_by_index, ov_compiled_model_inputs_size,
    ov_compiled_model_output_by_index, ov_compiled_model_outputs_size, ov_compiled_model_t,
    ov_dimension_t, ov_element_type_e, ov_output_const_port_free, ov_output_const_port_t,
    ov_partial_shape_free, ov_partial_shape_t, ov_port_get_any_name, ov_port_get_element_type,
    ov_port_get_partial_shape, ov_status_e,
};

use crate::error::OpenvinoError;
use crate::sys::{Handle, check, take_string};
use crate::tensor::TensorType;

/// An input or output of a compiled model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// Tensor name, or the direction and index if the model gives none.
    pub name: String,
    /// Type of the elements.
    pub element: TensorType,
    /// Shape as text: `?` for a dynamic dimension, `2..8` for a bounded one, `[...]` if not even
    /// the number of dimensions is known.
    pub shape: String,
    dims: Option<Vec<DimRange>>,
}

impl PortInfo {
    /// Returns whether every dimension is known.
    pub fn is_static(&self) -> bool {
        let known = |dim: &DimRange| Some(dim.min) == dim.max;
        self.dims
            .as_ref()
            .is_some_and(|dims| dims.iter().all(known))
    }

    /// Returns whether a tensor of this type and shape can be bound.
    pub(crate) fn check(&self, element: TensorType, shape: &[usize]) -> Result<(), OpenvinoError> {
        if element != self.element {
            let (port, expected) = (self.name.clone(), self.element);
            return Err(OpenvinoError::ElementTypeMismatch {
                port,
                expected,
                found: element,
            });
        }
        let fits = self.dims.as_ref().is_none_or(|dims| {
            dims.len() == shape.len() && dims.iter().zip(shape).all(|(dim, size)| dim.has(*size))
        });
        if fits {
            return Ok(());
        }
        let (port, expected) = (self.name.clone(), self.shape.clone());
        Err(OpenvinoError::ShapeMismatch {
            port,
            expected,
            found: shape.to_owned(),
        })
    }
}

/// The sizes that a dimension can take, without an upper limit if there is no `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DimRange {
    min: usize,
    max: Option<usize>,
}

impl DimRange {
    /// OpenVINO writes −1 for "no limit" on either side.
    fn from_raw(raw: ov_dimension_t) -> Self {
        Self {
            min: usize::try_from(raw.min).unwrap_or(0),
            max: usize::try_from(raw.max).ok(),
        }
    }

    fn has(self, size: usize) -> bool {
        size >= self.min && self.max.is_none_or(|max| size <= max)
    }
}

impl fmt::Display for DimRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (min, Some(max)) if min == max => write!(f, "{min}"),
            (min, Some(max)) => write!(f, "{min}..{max}"),
            (0, None) => f.write_str("?"),
            (min, None) => write!(f, "{min}.."),
        }
    }
}

/// The functions of one direction: the C interface has them twice, for inputs and for outputs.
pub(crate) struct Direction {
    name: &'static str,
    count_name: &'static str,
    port_name: &'static str,
    count: unsafe fn(*const ov_compiled_model_t, *mut usize) -> ov_status_e,
    port: unsafe fn(
        *const ov_compiled_model_t,
        usize,
        *mut *mut ov_output_const_port_t,
    ) -> ov_status_e,
}

pub(crate) const INPUTS: Direction = Direction {
    name: "input",
    count_name: "ov_compiled_model_inputs_size",
    port_name: "ov_compiled_model_input_by_index",
    count: ov_compiled_model_inputs_size,
    port: ov_compiled_model_input_by_index,
};

pub(crate) const OUTPUTS: Direction = Direction {
    name: "output",
    count_name: "ov_compiled_model_outputs_size",
    port_name: "ov_compiled_model_output_by_index",
    count: ov_compiled_model_outputs_size,
    port: ov_compiled_model_output_by_index,
};

/// Returns all ports of one direction, in the order of their indices.
pub(crate) fn read_ports(
    model: &Handle<ov_compiled_model_t>,
    direction: &Direction,
) -> Result<Vec<PortInfo>, OpenvinoError> {
    let mut count = 0;
    // SAFETY: the model lives through the call, and `count` is valid for a write.
    let status = unsafe { (direction.count)(model.as_ptr(), &raw mut count) };
    check(direction.count_name, status)?;
    let mut ports = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the model lives through the call. The new port is the handle's alone, to be freed
        // as named.
        let port = unsafe {
            Handle::create(direction.port_name, ov_output_const_port_free, |port| {
                (direction.port)(model.as_ptr(), index, port)
            })
        }?;
        ports.push(read_port(&port, &format!("{} {index}", direction.name))?);
    }
    Ok(ports)
}

fn read_port(
    port: &Handle<ov_output_const_port_t>,
    fallback: &str,
) -> Result<PortInfo, OpenvinoError> {
    let mut name = ptr::null_mut();
    // SAFETY: the port lives through the call, and `name` is valid for a write.
    let status = unsafe { ov_port_get_any_name(port.as_ptr(), &raw mut name) };
    // The call fails for a port without a name, which is no error here.
    let name = if status == ov_status_e::OK {
        // SAFETY: after success `name` is a string allocated for the caller, used nowhere else.
        unsafe { take_string(name) }
    } else {
        fallback.to_owned()
    };
    let mut element = ov_element_type_e::DYNAMIC;
    // SAFETY: the port lives through the call, and `element` is valid for a write.
    let status = unsafe { ov_port_get_element_type(port.as_ptr(), &raw mut element) };
    check("ov_port_get_element_type", status)?;
    let element = TensorType::from_raw(element, &name)?;
    let dims = read_dims(port)?;
    let shape = shape_text(dims.as_deref());
    Ok(PortInfo {
        name,
        element,
        shape,
        dims,
    })
}

/// Reads the dimensions of a port; `None` if not even their number is known.
fn read_dims(
    port: &Handle<ov_output_const_port_t>,
) -> Result<Option<Vec<DimRange>>, OpenvinoError> {
    let unknown = ov_dimension_t { min: 0, max: -1 };
    let mut shape = ov_partial_shape_t {
        rank: unknown,
        dims: ptr::null_mut(),
    };
    // SAFETY: the port lives through the call, and `shape` is valid for a write.
    let status = unsafe { ov_port_get_partial_shape(port.as_ptr(), &raw mut shape) };
    check("ov_port_get_partial_shape", status)?;
    let rank = usize::try_from(shape.rank.min)
        .ok()
        .filter(|_| shape.rank.min == shape.rank.max);
    let dims = rank.map(|rank| {
        let dim = |index| {
            // SAFETY: after success a shape of known rank has that many dimensions, which live
            // until freed below; `index < rank`.
            DimRange::from_raw(unsafe { *shape.dims.add(index) })
        };
        (0..rank).map(dim).collect()
    });
    // SAFETY: filled by the call above and freed once; the dimensions are copied.
    unsafe { ov_partial_shape_free(&raw mut shape) };
    Ok(dims)
}

fn shape_text(dims: Option<&[DimRange]>) -> String {
    let Some(dims) = dims else {
        return "[...]".to_owned();
    };
    let dims: Vec<String> = dims.iter().map(DimRange::to_string).collect();
    format!("[{}]", dims.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(dims: Option<&[(i64, i64)]>) -> PortInfo {
        let dims: Option<Vec<DimRange>> = dims.map(|dims| {
            dims.iter()
                .map(|(min, max)| {
                    DimRange::from_raw(ov_dimension_t {
                        min: *min,
                        max: *max,
                    })
                })
                .collect()
        });
        let shape = shape_text(dims.as_deref());
        PortInfo {
            name: "x".to_owned(),
            element: TensorType::F32,
            shape,
            dims,
        }
    }

    #[test]
    fn shapes_as_text() {
        let check = |dims: Option<&[(i64, i64)]>, text: &str, is_static: bool| {
            let port = port(dims);
            assert_eq!((port.shape.as_str(), port.is_static()), (text, is_static));
        };
        check(Some(&[(0, -1), (4, 4)]), "[?,4]", false);
        check(Some(&[(-1, -1), (2, 8), (3, -1)]), "[?,2..8,3..]", false);
        check(Some(&[(2, 2), (4, 4)]), "[2,4]", true);
        check(Some(&[]), "[]", true);
        check(None, "[...]", false);
    }

    #[test]
    fn a_tensor_must_have_the_ports_type_and_a_shape_within_its_own() {
        let port = port(Some(&[(0, -1), (4, 4)]));
        port.check(TensorType::F32, &[7, 4]).unwrap();
        let check = |element, shape: &[usize], text: &str| {
            assert_eq!(port.check(element, shape).unwrap_err().to_string(), text);
        };
        check(
            TensorType::F32,
            &[7, 3],
            "port `x` has shape `[?,4]`, the tensor has `[7, 3]`",
        );
        check(
            TensorType::F32,
            &[4],
            "port `x` has shape `[?,4]`, the tensor has `[4]`",
        );
        check(
            TensorType::F16,
            &[7, 4],
            "`x` has elements of `f32`, the tensor has `f16`",
        );
    }
}
