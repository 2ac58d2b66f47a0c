//! The common parts of all modules that call the C interface: status checks, owned strings, owned
//! handles.
//!
//! The interface returns a status from each call, strings on the heap to be released with
//! `ov_free`, and objects, each to be released by a function of its own. No knowledge of any
//! particular object is here.

use std::ffi::{CStr, CString, c_char};
use std::ptr::{self, NonNull};

use openvino_sys::{ov_free, ov_get_error_info, ov_get_last_err_msg, ov_status_e};

use crate::error::OpenvinoError;

/// An object of the C interface, released when dropped.
pub(crate) struct Handle<T> {
    object: NonNull<T>,
    free: unsafe fn(*mut T),
}

impl<T> Handle<T> {
    /// Takes ownership of the object that `make` stores through its argument.
    ///
    /// # Safety
    ///
    /// When `make` returns `OK` it has stored null, or an object that nobody else releases and that
    /// `free` may release once.
    pub(crate) unsafe fn create(
        function: &'static str,
        free: unsafe fn(*mut T),
        make: impl FnOnce(*mut *mut T) -> ov_status_e,
    ) -> Result<Self, OpenvinoError> {
        let mut object = ptr::null_mut();
        check(function, make(&raw mut object))?;
        match NonNull::new(object) {
            Some(object) => Ok(Self { object, free }),
            None => Err(OpenvinoError::Call {
                function,
                status: "OK".to_owned(),
                message: "returned no object".to_owned(),
            }),
        }
    }

    /// Returns the object, valid as long as the handle is alive.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: `create` was promised that `free` may release this object once; the handle is
        // neither cloned nor copied, so this is that once.
        unsafe { (self.free)(self.object.as_ptr()) }
    }
}

/// Turns a status into a result, with OpenVINO's message.
#[inline]
pub(crate) fn check(function: &'static str, status: ov_status_e) -> Result<(), OpenvinoError> {
    if status == ov_status_e::OK {
        Ok(())
    } else {
        Err(failure(function, status))
    }
}

/// Takes ownership of a string that OpenVINO allocated.
///
/// # Safety
///
/// `text` is null, or a zero-terminated string that OpenVINO allocated for the caller and that is
/// not used again.
pub(crate) unsafe fn take_string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and zero-terminated by the caller's promise; copied before it is released.
    let owned = unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned();
    // SAFETY: allocated by OpenVINO for the caller, who gives it up; released here once.
    unsafe { ov_free(text) };
    owned
}

/// Converts text to the form that the C interface takes.
pub(crate) fn c_string(what: &'static str, text: &str) -> Result<CString, OpenvinoError> {
    CString::new(text).map_err(|_| OpenvinoError::ZeroByte {
        what,
        text: text.to_owned(),
    })
}

#[cold]
fn failure(function: &'static str, status: ov_status_e) -> OpenvinoError {
    if status == ov_status_e::INFER_CANCELLED {
        return OpenvinoError::Cancelled;
    }
    // Refused arguments raise no exception, so the last message would be an older call's.
    let message = if status == ov_status_e::INVALID_C_PARAM {
        String::new()
    } else {
        // SAFETY: the function returns null or a fresh copy of its message for the caller.
        unsafe { take_string(ov_get_last_err_msg()) }
    };
    let message = if message.is_empty() {
        describe(status)
    } else {
        message
    };
    OpenvinoError::Call {
        function,
        status: format!("{status:?}"),
        message: message.trim().to_owned(),
    }
}

fn describe(status: ov_status_e) -> String {
    // SAFETY: any status is a valid argument; the result is null or a string literal of the
    // library, which stays loaded for the life of the process.
    let text = unsafe { ov_get_error_info(status) };
    if text.is_null() {
        return "no message".to_owned();
    }
    // SAFETY: not null, and a zero-terminated literal as said above.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_a_zero_byte_is_refused() {
        let error = c_string("device", "C\0PU").unwrap_err();
        assert_eq!(error.to_string(), "device contains a zero byte: `C\\0PU`");
    }

    #[test]
    fn cancellation_has_its_own_error() {
        let error = check("ov_infer_request_wait", ov_status_e::INFER_CANCELLED).unwrap_err();
        assert_eq!(error.to_string(), "the inference was cancelled");
    }
}
