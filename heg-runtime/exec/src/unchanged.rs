//! Checks that the bundle is the same as when it was opened.

use heg_artifacts::Bundle;

use crate::error::ExecError;

/// Checks that the bundle's file was not changed. Weights are read where they lie, again in every pass: this is
/// called before a pass, so that it does not read past the end of a truncated file, and after it, so that no token is
/// chosen from foreign data.
pub(crate) fn check_unchanged(bundle: &Bundle) -> Result<(), ExecError> {
    let mapping = bundle.mapping();
    mapping.check_unchanged().map_err(ExecError::BundleChanged)
}
