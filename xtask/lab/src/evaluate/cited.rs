//! Figures of the papers, as data: `papers/*.ron` of this crate, each with the section that has it.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ops::Deref;

/// A figure, and its section in the paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cited<T> {
    #[expect(dead_code, reason = "for people who check a figure")]
    section: String,
    value: T,
}

impl<T> Deref for Cited<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Reads the figures of the paper called `name`.
pub(crate) fn read<T: DeserializeOwned>(name: &str, text: &str) -> Result<T> {
    ron::from_str(text).with_context(|| format!("cannot read the figures of {name}"))
}
