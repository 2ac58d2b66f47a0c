//! Verification between passes.
//!
//! A verifier checks the invariants that the next pass relies on; it runs after its pass in debug builds, and elsewhere
//! with [`Verify::Always`](crate::Verify::Always). A violation is a fault of the compiler: mistakes in models and spec
//! files have errors of their own.

use std::fmt::Debug;

use thiserror::Error;

/// An invariant that a pass broke.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "after pass `{pass}`: {place}: expected {expected}, found {found} (a fault of the compiler, not of the model)"
)]
pub struct BrokenInvariant {
    /// Name of the pass.
    pub pass: &'static str,
    /// The operator, kernel or weight.
    pub place: String,
    /// The property that the next pass relies on.
    pub expected: String,
    /// The actual value.
    pub found: String,
}

/// Checks of one place in a pass's result.
pub(crate) struct Checks {
    pass: &'static str,
    place: String,
}

impl Checks {
    pub(crate) fn new(pass: &'static str, place: impl Into<String>) -> Self {
        Self {
            pass,
            place: place.into(),
        }
    }

    /// Checks that `what` is as expected.
    pub(crate) fn equal<T: Debug + PartialEq>(
        &self,
        what: &str,
        expected: T,
        found: T,
    ) -> Result<(), BrokenInvariant> {
        match expected == found {
            true => Ok(()),
            false => Err(self.broken(format!("{what} {expected:?}"), format!("{found:?}"))),
        }
    }

    /// Checks that something holds; `expected` describes it.
    pub(crate) fn holds(
        &self,
        holds: bool,
        expected: &str,
        found: impl Debug,
    ) -> Result<(), BrokenInvariant> {
        match holds {
            true => Ok(()),
            false => Err(self.broken(expected.to_owned(), format!("{found:?}"))),
        }
    }

    fn broken(&self, expected: String, found: String) -> BrokenInvariant {
        BrokenInvariant {
            pass: self.pass,
            place: self.place.clone(),
            expected,
            found,
        }
    }
}
