//! Handles of the C interface as numbers that are looked up, so that a stale or foreign one is an error here rather
//! than memory that is gone.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::abi::{Code, Handle, INVALID_NULL_HANDLE};
use crate::log::lock;

/// Objects of one kind that callers hold.
///
/// A number is never given out twice, for objects of any kind.
pub(crate) struct Handles<T>(Mutex<BTreeMap<usize, Arc<T>>>);

impl<T> Handles<T> {
    /// No objects yet.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Keeps an object, and returns its handle.
    pub(crate) fn keep(&self, value: T) -> Handle {
        // Far from null, and no address of anything.
        static NEXT: AtomicUsize = AtomicUsize::new(0x1_0000);
        let number = NEXT.fetch_add(8, Ordering::Relaxed);
        lock(&self.0).insert(number, Arc::new(value));
        ptr::without_provenance_mut::<c_void>(number)
    }

    /// The object of a handle.
    ///
    /// # Errors
    ///
    /// [`INVALID_NULL_HANDLE`] if the handle is of none.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Code> {
        let found = lock(&self.0).get(&handle.addr()).map(Arc::clone);
        found.ok_or(INVALID_NULL_HANDLE)
    }

    /// Takes the object of a handle out.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub(crate) fn release(&self, handle: Handle) -> Result<Arc<T>, Code> {
        lock(&self.0)
            .remove(&handle.addr())
            .ok_or(INVALID_NULL_HANDLE)
    }

    /// Number of objects that callers hold.
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_was_released_is_of_nothing() {
        let handles = Handles::new();
        let (first, second) = (handles.keep("first"), handles.keep("second"));
        assert_eq!(*handles.get(first).unwrap(), "first");
        assert_eq!(*handles.release(first).unwrap(), "first");
        assert_eq!(handles.get(first), Err(INVALID_NULL_HANDLE));
        assert_eq!(handles.release(first), Err(INVALID_NULL_HANDLE));
        assert_eq!(handles.get(ptr::null_mut()), Err(INVALID_NULL_HANDLE));
        assert_eq!(
            (*handles.get(second).unwrap(), handles.count()),
            ("second", 1)
        );
    }
}
