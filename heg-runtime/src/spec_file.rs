//! Spec files that a user names: shipped ones by name, others by path.

use std::path::PathBuf;

use heg_spec::{Policy, Soc, Source, SpecError, shipped};

use crate::error::RuntimeError;

/// Reads a SoC by shipped name, or by a path that ends in `.ron`.
pub fn read_soc(name: &str) -> Result<Soc, RuntimeError> {
    read(name, shipped::soc, Soc::parse)
}

/// Reads a policy by shipped name, or by a path that ends in `.ron`.
pub fn read_policy(name: &str) -> Result<Policy, RuntimeError> {
    read(name, shipped::policy, Policy::parse)
}

fn read<T>(
    name: &str,
    shipped: impl FnOnce(&str) -> Result<T, SpecError>,
    parse: impl FnOnce(Source<'_>) -> Result<T, SpecError>,
) -> Result<T, RuntimeError> {
    if !name.ends_with(".ron") {
        return Ok(shipped(name)?);
    }
    let text = std::fs::read_to_string(name).map_err(|source| SpecError::Read {
        path: PathBuf::from(name),
        source,
    })?;
    Ok(parse(Source {
        file: name,
        text: &text,
    })?)
}
