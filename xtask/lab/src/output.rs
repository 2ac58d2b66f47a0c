//! Files and JSON of all commands.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fs;
use std::path::Path;
use xtask::fail::Fail;

/// Returns a value as JSON for people, with a line end.
pub(crate) fn pretty(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    Ok(text + "\n")
}

/// Returns values as JSON, one a line.
pub(crate) fn json_lines<T: Serialize>(values: impl IntoIterator<Item = T>) -> Result<String> {
    let lines = values.into_iter().map(|value| {
        let text = serde_json::to_string(&value).context("cannot write JSON")?;
        Ok(text + "\n")
    });
    lines.collect()
}

/// Writes a file.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| unwritable(path))
}

/// Writes files into a folder, and makes it if there is none.
pub(crate) fn write_all<'f>(
    folder: &Path,
    files: impl IntoIterator<Item = (&'f str, &'f str)>,
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| unwritable(folder))?;
    let mut files = files.into_iter();
    files.try_for_each(|(name, text)| write(&folder.join(name), text))
}

/// The error of a failed write to `path`.
pub(crate) fn unwritable(path: &Path) -> Fail {
    Fail::environment(format!("cannot write `{}`", path.display()))
}
