//! Keys and signatures of minisign.

use std::fmt;
use std::str::FromStr;

use minisign_verify::{PublicKey, Signature};

use crate::error::TrustError;

/// A public key, and a label for people. Equal keys may have different labels; only the key counts.
#[derive(Debug, Clone)]
pub struct PublisherKey {
    text: String,
    label: String,
    key: PublicKey,
}

impl PublisherKey {
    /// The key's label, e.g. `2026`; empty if it has none.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The key as the second line of a `.pub` file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The key and its label, as [`PublisherKey::from_str`] takes them.
    pub(crate) fn to_line(&self) -> String {
        match self.label.as_str() {
            "" => self.text.clone(),
            label => format!("{} {label}", self.text),
        }
    }

    /// Whether this key made the signature over these bytes. Legacy signatures, over the bytes and not their BLAKE2b,
    /// are not accepted: minisign 0.11 makes them only when asked to.
    pub fn has_signed(&self, bytes: &[u8], signature: &ReleaseSignature) -> bool {
        self.key.verify(bytes, &signature.0, false).is_ok()
    }
}

impl PartialEq for PublisherKey {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for PublisherKey {}

impl FromStr for PublisherKey {
    type Err = TrustError;

    /// Parses a key, and its label behind a blank if there is one.
    fn from_str(text: &str) -> Result<Self, TrustError> {
        let text = text.trim();
        let (key, label) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let refused = || TrustError::NotAKey {
            found: text.chars().take(KEY_CHARS + 4).collect(),
        };
        if key.len() != KEY_CHARS {
            return Err(refused());
        }
        let parsed = PublicKey::from_base64(key).map_err(|_| refused())?;
        Ok(Self {
            text: key.to_owned(),
            label: label.trim().to_owned(),
            key: parsed,
        })
    }
}

/// Formats as the label, or the first digits of the key.
impl fmt::Display for PublisherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label.as_str() {
            "" => f.write_str(self.text.get(..16).unwrap_or(&self.text)),
            label => f.write_str(label),
        }
    }
}

/// A signature in minisign's form.
#[derive(Clone)]
pub struct ReleaseSignature(Signature);

impl ReleaseSignature {
    /// Parses the content of a `.minisig` file. `number` is the signature's own, from 1, for the error.
    ///
    /// Errors: [`TrustError::TooLong`], [`TrustError::NotASignature`].
    pub fn parse(bytes: &[u8], number: usize) -> Result<Self, TrustError> {
        TrustError::check_length("signature", bytes, SIGNATURE_BYTES_MAX)?;
        let text = std::str::from_utf8(bytes).ok();
        let signature = text.and_then(|text| Signature::decode(text).ok());
        signature
            .map(Self)
            .ok_or(TrustError::NotASignature { number })
    }

    /// Parses the first signatures of a document, numbered from 1.
    ///
    /// Errors: those of [`ReleaseSignature::parse`].
    pub(crate) fn parse_all<B: AsRef<[u8]>>(signatures: &[B]) -> Result<Vec<Self>, TrustError> {
        let signatures = signatures.iter().take(SIGNATURES_MAX).zip(1..);
        signatures
            .map(|(bytes, number)| Self::parse(bytes.as_ref(), number))
            .collect()
    }

    /// The comment that is signed too.
    pub fn trusted_comment(&self) -> &str {
        self.0.trusted_comment()
    }
}

impl fmt::Debug for ReleaseSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReleaseSignature")
            .field(&self.trusted_comment())
            .finish()
    }
}

/// Base64 of 42 bytes: algorithm, number and key.
const KEY_CHARS: usize = 56;

/// Most signatures of a document that are looked at. Chosen.
const SIGNATURES_MAX: usize = 16;

/// Longest signature that is read, in bytes. minisign's own limit for comments is 8 KiB; chosen above that.
pub const SIGNATURE_BYTES_MAX: u64 = 32 << 10;
