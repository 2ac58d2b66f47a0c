//! Device properties in the form that the C interface takes: an array of pairs of pointers.
//!
//! The interface takes every value as `const void *`, and the key decides the type at which it
//! points. Here it always points at text, so keys with values of other types are refused.

use std::ffi::{CString, c_void};

use openvino_sys::ov_property_t;

use crate::error::OpenvinoError;
use crate::sys::c_string;

/// Key and value pairs in the form that OpenVINO takes.
///
/// **Invariants**
/// - every pointer in `raw` is to a string in `strings`, whose bytes are on the heap and never
///   move;
/// - no key has a value that OpenVINO takes for a pointer to something else than text.
pub(crate) struct Properties {
    raw: Vec<ov_property_t>,
    _strings: Vec<CString>,
}

impl Properties {
    pub(crate) fn new(pairs: &[(&str, &str)]) -> Result<Self, OpenvinoError> {
        let mut raw = Vec::with_capacity(pairs.len());
        let mut strings = Vec::with_capacity(2 * pairs.len());
        for (name, value) in pairs {
            if POINTER_PROPERTIES.contains(name) {
                return Err(OpenvinoError::PointerProperty {
                    name: (*name).to_owned(),
                });
            }
            let key = c_string("property name", name)?;
            let value = c_string("property value", value)?;
            raw.push(ov_property_t {
                key: key.as_ptr(),
                value: value.as_ptr().cast::<c_void>(),
            });
            strings.extend([key, value]);
        }
        Ok(Self {
            raw,
            _strings: strings,
        })
    }

    /// Returns the number of pairs, and a pointer to the first one; valid while this value is
    /// alive.
    pub(crate) fn as_raw(&self) -> (usize, *const ov_property_t) {
        (self.raw.len(), self.raw.as_ptr())
    }
}

/// Properties whose value the C interface takes for a handle or a structure (`ov_property.h`,
/// `remote_properties.hpp`).
const POINTER_PROPERTIES: [&str; 6] = [
    "CACHE_ENCRYPTION_CALLBACKS",
    "OCL_CONTEXT",
    "OCL_QUEUE",
    "VA_DEVICE",
    "MEM_HANDLE",
    "DEV_OBJECT_HANDLE",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_that_takes_a_pointer_is_refused() {
        for name in POINTER_PROPERTIES {
            let error = Properties::new(&[("A", "b"), (name, "text")])
                .err()
                .unwrap();
            let text = format!("property `{name}` takes a pointer and cannot be set from text");
            assert_eq!(error.to_string(), text);
        }
    }
}
