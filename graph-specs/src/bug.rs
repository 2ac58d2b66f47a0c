//! Cases that a check elsewhere excludes: loud in debug builds and tests, an error in release.
//!
//! [`bug!`](macro@crate::bug) is for broken invariants of our own code. It is not for foreign input, which has errors
//! of its own, and not for legitimate absence, which a comment or the name at the place explains.

use std::panic::Location;

use thiserror::Error;

/// A broken invariant of HEG's own code, with the place that noticed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{broken} (noticed at {place}); this is a bug")]
pub struct Bug {
    broken: &'static str,
    place: &'static Location<'static>,
}

impl Bug {
    /// For [`bug!`](macro@crate::bug).
    ///
    /// Whether it panics is decided by how this crate is built, since `heg-cpu` has no debug assertions in tests.
    #[doc(hidden)]
    #[cold]
    #[inline(never)]
    #[track_caller]
    #[allow(
        clippy::panic,
        reason = "debug builds alone, where a bug has to be loud"
    )]
    pub fn noticed(broken: &'static str) -> Self {
        let place = Location::caller();
        if cfg!(debug_assertions) {
            panic!("broken invariant: {broken}");
        }
        Self { broken, place }
    }
}

/// Notices a broken invariant, said in words: panics in debug builds and tests, gives a [`Bug`] in release.
/// A function without errors drops it and returns.
///
/// ```
/// fn last(sorted: &[u32]) -> Result<u32, heg_spec::Bug> {
///     let last = sorted.last().copied();
///     last.ok_or_else(|| heg_spec::bug!("an empty list passed the check"))
/// }
/// assert_eq!(last(&[1, 2]), Ok(2));
/// ```
#[macro_export]
macro_rules! bug {
    ($broken:literal) => {
        $crate::Bug::noticed($broken)
    };
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    #[test]
    fn a_bug_panics_in_debug_builds_and_is_an_error_in_release() {
        let noticed = catch_unwind(|| crate::bug!("two and two are five"));
        assert_eq!(noticed.is_err(), cfg!(debug_assertions));
        if let Ok(bug) = noticed {
            let text = bug.to_string();
            assert!(text.starts_with("two and two are five (noticed at "));
            assert!(text.contains("bug.rs:") && text.ends_with("; this is a bug"));
        }
    }
}
