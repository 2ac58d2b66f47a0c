//! Systems on which threads are left where the system puts them.

use super::Core;

/// The cores that this process may use; none, as they are not told apart here.
pub(crate) fn cores() -> Vec<Core> {
    Vec::new()
}

/// Keeps the calling thread on some cores; false, and nothing happens, where that cannot be done.
pub(crate) fn keep_on(_: &[usize]) -> bool {
    false
}
