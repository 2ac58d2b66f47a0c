//! A blob's requirements on a device and its driver: the compatibility record.
//!
//! A text such as `compiler=8.4;npu=3720;t=2;elf=1.2.0;mi=7.0.4`. The NPU compiler writes it and the driver's loader
//! compares it with the device (`checkCompatibilityString` of npu_plugin_elf). Unknown attributes are kept verbatim: a
//! later compiler may add some, and whether they matter is decided where records are compared. The compilers known so
//! far write no stepping.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::BlobError;

/// A compatibility record. In RON it is its text.
///
/// Invariants:
/// - the text is visible ASCII, and parsing it again gives an equal record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlobCompatibility {
    text: String,
    compiler: Version,
    platform: u32,
    tiles: u32,
    elf: Version,
    mapped_inference: Version,
    other: Vec<String>,
}

impl BlobCompatibility {
    /// Parses the text of a record; refuses one without the five attributes below.
    pub fn parse(text: &str) -> Result<Self, BlobError> {
        Self::read(text.as_bytes())
    }

    /// Reads a record as in a blob, where a terminating NUL may count as part of the text.
    pub(super) fn read(record: &[u8]) -> Result<Self, BlobError> {
        let record = record.strip_suffix(b"\0").unwrap_or(record);
        if record.len() > RECORD_BYTES_MAX {
            return Err(BlobError::RecordLong {
                found: record.len() as u64,
            });
        }
        if let Some(&found) = record.iter().find(|byte| !byte.is_ascii_graphic()) {
            return Err(BlobError::RecordBytes { found });
        }
        let text = String::from_utf8_lossy(record).into_owned();
        let mut attributes = Attributes::split(&text)?;
        let (compiler, platform, tiles, elf, mapped_inference) = (
            attributes.version("compiler")?,
            attributes.number("npu")?,
            attributes.number("t")?,
            attributes.version("elf")?,
            attributes.version("mi")?,
        );
        let other = attributes.rest();
        Ok(BlobCompatibility {
            text,
            compiler,
            platform,
            tiles,
            elf,
            mapped_inference,
            other,
        })
    }

    /// The record as the compiler wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The compiler's version.
    pub fn compiler(&self) -> Version {
        self.compiler
    }

    /// The NPU platform, such as 3720, which has to be the device's own.
    pub fn platform(&self) -> u32 {
        self.platform
    }

    /// Number of tiles that the blob uses; the device must have at least as many.
    pub fn tiles(&self) -> u32 {
        self.tiles
    }

    /// Version of the ELF format, which the loader has to support.
    pub fn elf(&self) -> Version {
        self.elf
    }

    /// Version of the mapped inference, the input of the device's firmware.
    pub fn mapped_inference(&self) -> Version {
        self.mapped_inference
    }

    /// Attributes unknown to this program, and groups of optional ones (`{…}`), verbatim.
    pub fn other(&self) -> &[String] {
        &self.other
    }
}

impl TryFrom<String> for BlobCompatibility {
    type Error = BlobError;

    fn try_from(text: String) -> Result<Self, BlobError> {
        BlobCompatibility::parse(&text)
    }
}

impl From<BlobCompatibility> for String {
    fn from(record: BlobCompatibility) -> String {
        record.text
    }
}

/// A version; a missing patch number is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The attributes of a record that have not been taken yet, in order.
struct Attributes<'a>(Vec<&'a str>);

impl<'a> Attributes<'a> {
    /// Splits at semicolons, except within `[…]` and `{…}`, which belong to one attribute.
    fn split(text: &'a str) -> Result<Self, BlobError> {
        let mut depth = 0_u32;
        let separates = |c: char| {
            depth = match c {
                '[' | '{' => depth.saturating_add(1),
                ']' | '}' => depth.saturating_sub(1),
                _ => depth,
            };
            c == ';' && depth == 0
        };
        let attributes: Vec<&str> = text.split(separates).collect();
        for attribute in &attributes {
            let named = attribute
                .split_once('=')
                .is_some_and(|(key, value)| !key.is_empty() && !value.is_empty());
            if !named && !attribute.starts_with('{') {
                return Err(BlobError::Attribute {
                    found: (*attribute).to_owned(),
                    expected: "a name, `=` and a value",
                });
            }
        }
        Ok(Attributes(attributes))
    }

    /// Removes the attribute with this name; returns the whole attribute, and its value.
    fn take(&mut self, key: &'static str) -> Result<(&'a str, &'a str), BlobError> {
        let is_named = |attribute: &&str| attribute.split_once('=').is_some_and(|(k, _)| k == key);
        let mut named = self.0.iter().filter(|a| is_named(a));
        let (first, second) = (named.next().copied(), named.next());
        if second.is_some() {
            return Err(BlobError::AttributeTwice { key });
        }
        let attribute = first.ok_or(BlobError::AttributeMissing { key })?;
        self.0.retain(|a| !is_named(a));
        let (_, value) = attribute.split_once('=').unwrap_or_default();
        Ok((attribute, value))
    }

    fn number(&mut self, key: &'static str) -> Result<u32, BlobError> {
        let (attribute, value) = self.take(key)?;
        number(value).ok_or_else(|| BlobError::Attribute {
            found: attribute.to_owned(),
            expected: "a number",
        })
    }

    fn version(&mut self, key: &'static str) -> Result<Version, BlobError> {
        let (attribute, value) = self.take(key)?;
        version(value).ok_or_else(|| BlobError::Attribute {
            found: attribute.to_owned(),
            expected: "two or three numbers with dots",
        })
    }

    fn rest(self) -> Vec<String> {
        self.0.into_iter().map(str::to_owned).collect()
    }
}

/// The longest record: chosen, ninety times today's.
pub(super) const RECORD_BYTES_MAX: usize = 4096;

/// Parses digits only: `str::parse` would accept a sign.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.');
    let (major, minor) = (number(parts.next()?)?, number(parts.next()?)?);
    let patch = parts.next().map_or(Some(0), number)?;
    parts.next().is_none().then_some(Version {
        major,
        minor,
        patch,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORD: &str = "compiler=8.4;npu=4000;t=4;elf=1.2.2;mi=11.4.10";

    #[test]
    fn the_five_attributes() {
        let record = BlobCompatibility::parse(RECORD).unwrap();
        assert_eq!((record.platform(), record.tiles()), (4000, 4));
        let versions = [record.compiler(), record.elf(), record.mapped_inference()];
        assert_eq!(
            versions.map(|v| v.to_string()),
            ["8.4.0", "1.2.2", "11.4.10"]
        );
        assert!(record.other().is_empty());
        let ron = ron::to_string(&record).unwrap();
        assert_eq!(ron, format!("\"{RECORD}\""));
        assert_eq!(ron::from_str::<BlobCompatibility>(&ron).unwrap(), record);
    }

    #[test]
    fn what_is_not_known_is_kept() {
        let text = "npu=5010;stepping=B0;compiler=9.1.2;{a=1;t=2};list=[t=1;y=2|z=3];t=3;elf=2.0.0;mi=11.13.0";
        let record = BlobCompatibility::parse(text).unwrap();
        assert_eq!((record.platform(), record.tiles()), (5010, 3));
        assert_eq!(record.text(), text);
        assert_eq!(
            record.other(),
            ["stepping=B0", "{a=1;t=2}", "list=[t=1;y=2|z=3]"]
        );
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for (part, broken, expected) in [
            ("npu=4000;", "", "no `npu`"),
            ("npu=4000", "{npu=4000}", "no `npu`"),
            ("t=4", "t=4;t=4", "`t` twice"),
            ("t=4", "t=+4", "`t=+4`, expected a number"),
            ("t=4", "t=4294967296", "`t=4294967296`, expected a number"),
            (
                "8.4",
                "8",
                "`compiler=8`, expected two or three numbers with dots",
            ),
            (
                "1.2.2",
                "1..2",
                "`elf=1..2`, expected two or three numbers with dots",
            ),
            (
                "11.4.10",
                "1.4.1.0",
                "`mi=1.4.1.0`, expected two or three numbers with dots",
            ),
            ("t=4;", "t=4;;", "``, expected a name, `=` and a value"),
            ("t=4", "t=4;new", "`new`, expected a name, `=` and a value"),
            ("t=4", "t=", "`t=`, expected a name, `=` and a value"),
            ("t=4", "t=4 ", "` `, expected visible ASCII"),
            ("t=4", "t=4\n", "`\\n`, expected visible ASCII"),
        ] {
            let error = BlobCompatibility::parse(&RECORD.replace(part, broken)).unwrap_err();
            let expected = format!("the blob's compatibility record has {expected}");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let fits = format!("{RECORD};x={}", "y".repeat(4096 - RECORD.len() - 3));
        assert_eq!(BlobCompatibility::parse(&fits).unwrap().text(), fits);
        let error = BlobCompatibility::parse(&format!("{fits}y")).unwrap_err();
        let expected = "the blob's compatibility record has `4097` bytes, expected `4096` at most";
        assert_eq!(error.to_string(), expected);
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read_again(
            text in "((compiler|elf|mi)=[0-9]{1,11}\\.[0-9.]{0,4};|npu=4000;|t=4;|[a-z]=?[\\[{a=;}\\]]{0,4};){0,9}x=1",
        ) {
            let text = format!("{RECORD};{text}");
            if let Ok(record) = BlobCompatibility::parse(&text) {
                prop_assert_eq!(record.text(), &text);
                let ron = ron::to_string(&record).unwrap();
                prop_assert_eq!(ron::from_str::<BlobCompatibility>(&ron).unwrap(), record);
            }
        }
    }
}
