//! RON documents of a bundle: the manifest and CPU programs are written and read in one way.

use ron::error::SpannedResult;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The text of a document: one line per list item, so that two can be compared line by line. The same value gives
/// the same bytes.
pub(crate) fn to_text<T: Serialize>(document: &T) -> Result<String, ron::Error> {
    let style = ron::ser::PrettyConfig::new()
        .new_line("\n")
        .indentor(" ")
        .depth_limit(2);
    let mut text = ron::Options::default().to_string_pretty(document, style)?;
    text.push('\n');
    Ok(text)
}

/// Parses a document of strangers.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> SpannedResult<T> {
    ron::Options::default()
        .with_recursion_limit(RECURSION_MAX)
        .from_bytes(text)
}

/// The manifest's types nest seven deep, those of programs less; the rest is room for newer revisions, which the
/// manifest's probe reads over.
const RECURSION_MAX: usize = 64;
