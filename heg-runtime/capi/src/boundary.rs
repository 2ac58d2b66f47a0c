//! From pointers to references and back, and from results and panics to codes: the unsafe half of the interface.
//!
//! Each function believes of a pointer only what `heg.h` asks of its caller: NULL, or an object of the named type
//! that this library gave and that was not freed; texts end with a zero. All else is checked here. A panic ends in an
//! error, never in the caller's frames.
#![allow(
    unsafe_code,
    reason = "the other side of the interface is C: pointers come and go here, and nowhere else"
)]

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::InterfaceError;

/// The outcome of a function that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Outcome {
    /// Done; of an answer, there is a piece of text.
    Ok = 0,
    /// Nothing has come yet.
    Pending = -1,
    /// The answer is over.
    End = -2,
}

/// An error that a caller holds: `heg_error`.
pub struct ErrorHandle {
    pub(crate) code: i32,
    pub(crate) message: CString,
}

impl From<&InterfaceError> for ErrorHandle {
    fn from(error: &InterfaceError) -> Self {
        Self {
            code: error.code(),
            message: c_text(error.message()),
        }
    }
}

/// Does the work of a function; a failure or panic becomes a code, and an error in `error` unless that is NULL.
///
/// # Safety
///
/// `error` is NULL, or a place for a pointer.
pub(crate) unsafe fn conclude(
    error: *mut *mut ErrorHandle,
    work: impl FnOnce() -> Result<Outcome, InterfaceError>,
) -> i32 {
    let failure = match contained(work) {
        Ok(outcome) => return outcome as i32,
        Err(failure) => failure,
    };
    if !error.is_null() {
        let handle = give(ErrorHandle::from(&failure));
        // SAFETY: the caller says that a pointer that is not NULL is a place for a pointer.
        unsafe { error.write(handle) };
    }
    failure.code()
}

/// As [`conclude`], for a function that gives a document in `json`, which the caller frees by [`take_back_text`].
///
/// # Safety
///
/// As for [`conclude`]; and `json` is NULL, or a place for a pointer.
pub(crate) unsafe fn conclude_with_json(
    json: *mut *mut c_char,
    error: *mut *mut ErrorHandle,
    work: impl FnOnce() -> Result<serde_json::Value, InterfaceError>,
) -> i32 {
    let put = || {
        let json = place("json", json)?;
        let text = give_text(work()?.to_string());
        // SAFETY: it is not NULL, so the caller gives a place for the text.
        unsafe { json.put(text) };
        Ok(Outcome::Ok)
    };
    // SAFETY: passed on to the caller.
    unsafe { conclude(error, put) }
}

/// Does some work; a panic becomes an error. What the work held is not used again, or is behind a lock.
pub(crate) fn contained<T>(
    work: impl FnOnce() -> Result<T, InterfaceError>,
) -> Result<T, InterfaceError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(InterfaceError::Panic(panic_text(&*panic))))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}

/// The text that an argument points to.
///
/// # Safety
///
/// `text` is NULL, or a text that ends with a zero and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(
    argument: &'static str,
    text: *const c_char,
) -> Result<&'a str, InterfaceError> {
    // SAFETY: passed on to the caller.
    let found = unsafe { text_or_none(argument, text) }?;
    let expected = "a text";
    found.ok_or(InterfaceError::Null { argument, expected })
}

/// The text that an argument points to, unless it is NULL.
///
/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn text_or_none<'a>(
    argument: &'static str,
    text: *const c_char,
) -> Result<Option<&'a str>, InterfaceError> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL, so the caller says that it ends with a zero and stays as it is.
    let text = unsafe { CStr::from_ptr(text) };
    let at = |error: std::str::Utf8Error| InterfaceError::Encoding {
        argument,
        at: error.valid_up_to(),
    };
    Ok(Some(text.to_str().map_err(at)?))
}

/// The object that an argument points to.
///
/// # Safety
///
/// `object` is NULL, or came of [`give`] and is not taken back during `'a`.
pub(crate) unsafe fn object<'a, T: Sync>(
    argument: &'static str,
    object: *const T,
) -> Result<&'a T, InterfaceError> {
    let expected = "what this library returned";
    // SAFETY: the caller says that a pointer that is not NULL is one of ours and not freed yet; shared references to `T`
    // may be on several threads, and there are no others.
    let found = unsafe { object.as_ref() };
    found.ok_or(InterfaceError::Null { argument, expected })
}

/// Checks that there is a place for a result.
pub(crate) fn place<T>(argument: &'static str, place: *mut T) -> Result<Place<T>, InterfaceError> {
    if place.is_null() {
        let expected = "a place for the result";
        return Err(InterfaceError::Null { argument, expected });
    }
    Ok(Place(place))
}

/// A place for a result that is not NULL.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Writes the result.
    ///
    /// # Safety
    ///
    /// The pointer is a place for a `T` that nobody else uses now.
    pub(crate) unsafe fn put(self, value: T) {
        // SAFETY: it is not NULL, and the rest is what the caller says.
        unsafe { self.0.write(value) };
    }
}

/// Gives an object to the caller, who frees it by [`take_back`].
pub(crate) fn give<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Gives a text to the caller, who frees it by [`take_back_text`].
pub(crate) fn give_text(text: String) -> *mut c_char {
    c_text(text).into_raw()
}

/// A text for C. None of ours has a zero inside; if one had, it would end there.
pub(crate) fn c_text(text: String) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let end = error.nul_position();
        let mut bytes = error.into_vec();
        bytes.truncate(end);
        CString::new(bytes).unwrap_or_default()
    })
}

/// Drops an object; nothing happens for NULL. A panic goes no further.
///
/// # Safety
///
/// `object` is NULL, or came of [`give`], and nobody uses it any more.
pub(crate) unsafe fn take_back<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: it is not NULL, so the caller says that it is a box of ours that nobody uses.
        let object = unsafe { Box::from_raw(object) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(object)));
    }
}

/// Drops a text; nothing happens for NULL.
///
/// # Safety
///
/// `text` is NULL, or came of [`give_text`], and nobody uses it any more.
pub(crate) unsafe fn take_back_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it is not NULL, so the caller says that it is a text of ours that nobody uses.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// A function of the caller's that hears an answer: `heg_listener`.
pub(crate) type ListenerFunction =
    unsafe extern "C" fn(user: *mut c_void, code: i32, text: *const c_char, bytes: usize);

/// A listener with what it was given to know itself by.
pub(crate) struct Listener {
    function: ListenerFunction,
    user: *mut c_void,
}

// SAFETY: the header asks that function and `user` may be used on another thread; here they are only passed on.
unsafe impl Send for Listener {}

impl Listener {
    /// Makes a listener.
    ///
    /// # Safety
    ///
    /// `function` may be called on any one thread with `user`, until the answer is freed.
    pub(crate) unsafe fn new(
        function: Option<ListenerFunction>,
        user: *mut c_void,
    ) -> Result<Self, InterfaceError> {
        let expected = "a function";
        let argument = "listener";
        let function = function.ok_or(InterfaceError::Null { argument, expected })?;
        Ok(Self { function, user })
    }

    /// Calls the function. The text has a zero behind it, and stays for the call.
    pub(crate) fn tell(&self, code: i32, text: &str) {
        let mut bytes = Vec::with_capacity(text.len() + 1);
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
        // SAFETY: whoever made this listener said that it may be called; the text is `text.len()` bytes and a zero.
        unsafe { (self.function)(self.user, code, bytes.as_ptr().cast(), text.len()) };
    }
}
