//! The name of a run of bytes: its blake3 hash, as a newtype.
//!
//! Sections, manifests and source tensors are all named this way, so that equal bytes have one name on every machine.
//! Text formats show exactly 64 lower-case hexadecimal digits: there is one spelling of an identifier, so comparing
//! texts is comparing identifiers.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::error::Error;

/// blake3 hash of some bytes, 32 bytes long.
///
/// Ordered by its bytes, which is also the order of its text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SectionId([u8; SectionId::BYTES]);

impl SectionId {
    /// Length of an identifier in bytes; its text has twice as many digits.
    pub const BYTES: usize = 32;

    /// Returns the identifier of `bytes`. Hashes all of them, at some gigabytes per second on one core.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Wraps a hash that was computed elsewhere. Any 32 bytes are valid.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The hash itself.
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// The first 12 digits, for logs and tables; never read back.
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(SHORT_DIGITS);
        text
    }
}

impl From<blake3::Hash> for SectionId {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl fmt::Display for SectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for SectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SectionId({})", self.short())
    }
}

impl FromStr for SectionId {
    type Err = Error;

    /// Accepts exactly what [`fmt::Display`] writes; upper-case digits are refused.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::InvalidId {
            found: text.chars().take(FOUND_CHARS_MAX).collect(),
        };
        let digits = text.as_bytes();
        if digits.len() != 2 * Self::BYTES {
            return Err(invalid());
        }
        let mut bytes = [0; Self::BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else {
                return Err(invalid());
            };
            let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                return Err(invalid());
            };
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for SectionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SectionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HexVisitor)
    }
}

struct HexVisitor;

impl Visitor<'_> for HexVisitor {
    type Value = SectionId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("64 lower-case hexadecimal digits")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<SectionId, E> {
        text.parse().map_err(E::custom)
    }
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

/// Enough to tell sections of one bundle apart; chosen, not measured.
const SHORT_DIGITS: usize = 12;

/// Most characters of an invalid identifier that an error quotes.
const FOUND_CHARS_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<SectionId>().unwrap_err().to_string()
    }

    #[test]
    fn text_reads_back() {
        let id = SectionId::of(b"heg");
        let text = id.to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse::<SectionId>().unwrap(), id);
        assert!(text.starts_with(&id.short()));
        assert_eq!(
            ron::from_str::<SectionId>(&ron::to_string(&id).unwrap()).unwrap(),
            id
        );
    }

    #[test]
    fn the_hash_is_blake3() {
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(SectionId::of(b"").to_string(), empty);
    }

    #[test]
    fn order_is_the_order_of_the_text() {
        let mut ids: Vec<_> = (0..50_u8).map(|byte| SectionId::of(&[byte])).collect();
        ids.sort();
        assert!(ids.is_sorted_by_key(SectionId::to_string));
    }

    #[test]
    fn anything_else_is_refused() {
        assert_eq!(
            refused("ab"),
            "`ab` is not an identifier: expected 64 lower-case hexadecimal digits"
        );
        let upper = SectionId::of(b"heg").to_string().to_uppercase();
        assert!(refused(&upper).starts_with(&format!("`{upper}`")));
        refused(&"é".repeat(32));
        assert!(refused(&"x".repeat(1000)).len() < 200);
    }
}
