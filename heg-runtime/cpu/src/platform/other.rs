//! Systems without thread pinning.

use super::Core;

/// Cores that this process may use; empty, since they cannot be told apart.
pub(crate) fn cores() -> Vec<Core> {
    Vec::new()
}

/// Pins the calling thread to `cores`: unsupported, always false.
pub(crate) fn keep_on(_: &[usize]) -> bool {
    false
}
