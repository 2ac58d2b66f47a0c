//! RON documents of a bundle: the manifest and CPU programs are written and read in the same way.

use ron::error::SpannedResult;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Returns a document's text: one line per list item, so that two can be compared line by line. Equal values give equal
/// bytes.
pub(crate) fn to_text<T: Serialize>(document: &T) -> Result<String, ron::Error> {
    let style = ron::ser::PrettyConfig::new()
        .new_line("\n")
        .indentor(" ")
        .depth_limit(2);
    let mut text = ron::Options::default().to_string_pretty(document, style)?;
    text.push('\n');
    Ok(text)
}

/// Parses an untrusted document.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> SpannedResult<T> {
    ron::Options::default()
        .with_recursion_limit(RECURSION_MAX)
        .from_bytes(text)
}

/// The manifest's types nest seven deep, those of programs less; the rest is room for newer revisions, whose new fields
/// the manifest's probe skips.
const RECURSION_MAX: usize = 64;
