//! The documents of OCI registries and layouts: digests, indices and manifests, as types.
//!
//! They come from strangers. Their size is bounded before they are parsed, digests are parsed to 32 bytes, and nothing
//! in them becomes a path or an address. Fields that we do not know are ignored: the formats are others' to extend.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::error::ShipError;

/// The address of a blob in a registry: its sha256, 32 bytes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Sha256::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Compares it with that of `bytes`, which came from a place as `document`.
    ///
    /// Errors: [`ShipError::Document`].
    pub(crate) fn check(
        &self,
        document: &'static str,
        bytes: &[u8],
        place: &str,
    ) -> Result<(), ShipError> {
        let found = Self::of(bytes);
        match found == *self {
            true => Ok(()),
            false => {
                let message = format!("its digest is `{found}`, expected `{self}`");
                Err(ShipError::document(document, place, message))
            }
        }
    }

    /// The digits alone: the name of the blob's file in a layout.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A digest in the making.
#[derive(Default)]
pub(crate) struct Sha256(sha2::Sha256);

impl Sha256 {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl FromStr for Digest {
    type Err = ShipError;

    fn from_str(text: &str) -> Result<Self, ShipError> {
        let wrong = || ShipError::Name {
            found: text.chars().take(80).collect(),
            expected: "`sha256:` and 64 lower-case hexadecimal digits",
        };
        let digits = text.strip_prefix("sha256:").ok_or_else(wrong)?.as_bytes();
        let (pairs, rest) = digits.as_chunks::<2>();
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return Err(wrong());
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let (high, low) = (value(*high), value(*low));
            *byte = high
                .zip(low)
                .map(|(high, low)| high << 4 | low)
                .ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A blob as documents name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Kind of the blob.
    pub media_type: String,
    /// Its address.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// The blob itself in base64, where it is short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Facts about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// The blob that travels in the document, if it is there and has its digest.
    pub fn embedded(&self) -> Option<Vec<u8>> {
        let bytes = BASE64_STANDARD.decode(self.data.as_ref()?).ok()?;
        (Digest::of(&bytes) == self.digest).then_some(bytes)
    }

    /// A short blob that travels in the document.
    pub(crate) fn embedding(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            data: Some(BASE64_STANDARD.encode(bytes)),
            annotations: BTreeMap::new(),
        }
    }

    pub(crate) fn annotated(mut self, key: &str, value: impl Into<String>) -> Self {
        self.annotations.insert(key.to_owned(), value.into());
        self
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }
}

/// The list of a name's slices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Version of the format, 2.
    pub schema_version: u32,
    /// Kind of the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The slices' manifests.
    pub manifests: Vec<Descriptor>,
}

/// The list of a slice's blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    /// Version of the format, 2.
    pub schema_version: u32,
    /// Kind of the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Kind of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The model's description, for others' tools.
    pub config: Descriptor,
    /// Statements, blocks and parts.
    pub layers: Vec<Descriptor>,
    /// Facts about the slice.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The document under a tag: an index, or the manifest of the one slice that a copy has kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tagged {
    /// All slices.
    Index(Index),
    /// One of them.
    Manifest(ImageManifest),
}

impl Tagged {
    /// Reads the document under a tag. `place` is for the error.
    ///
    /// Errors: [`ShipError::Document`].
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self, ShipError> {
        check_length(bytes, place)?;
        let value: serde_json::Value = parse(bytes, place)?;
        match value.get("manifests").is_some() {
            true => Index::parse(bytes, place).map(Self::Index),
            false => ImageManifest::parse(bytes, place).map(Self::Manifest),
        }
    }
}

impl Index {
    /// Reads an index. `place` is for the error.
    ///
    /// Errors: [`ShipError::Document`].
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self, ShipError> {
        check_length(bytes, place)?;
        let index: Self = parse(bytes, place)?;
        check_version(index.schema_version, place)?;
        check_count(index.manifests.len(), place)?;
        Ok(index)
    }

    /// The text that is stored.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        // Text and numbers alone, so serialising cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl ImageManifest {
    /// Reads a manifest. `place` is for the error.
    ///
    /// Errors: [`ShipError::Document`].
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self, ShipError> {
        check_length(bytes, place)?;
        let manifest: Self = parse(bytes, place)?;
        check_version(manifest.schema_version, place)?;
        check_count(manifest.layers.len(), place)?;
        Ok(manifest)
    }

    /// The text that is stored.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        // As above.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The layers of files with this name, in their order.
    pub(crate) fn files<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Descriptor> {
        let layers = self.layers.iter();
        layers.filter(move |layer| layer.annotation(FILE_PATH) == Some(name))
    }
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], place: &str) -> Result<T, ShipError> {
    serde_json::from_slice(bytes).map_err(|error| ShipError::document(DOCUMENT, place, error))
}

fn check_length(bytes: &[u8], place: &str) -> Result<(), ShipError> {
    let found = bytes.len() as u64;
    match found <= DOCUMENT_BYTES_MAX {
        true => Ok(()),
        false => {
            let message = format!("`{found}` bytes, expected at most `{DOCUMENT_BYTES_MAX}`");
            Err(ShipError::document(DOCUMENT, place, message))
        }
    }
}

fn check_version(found: u32, place: &str) -> Result<(), ShipError> {
    let message = format!("`schemaVersion` is `{found}`, expected `2`");
    match found {
        2 => Ok(()),
        _ => Err(ShipError::document(DOCUMENT, place, message)),
    }
}

fn check_count(found: usize, place: &str) -> Result<(), ShipError> {
    let message = format!("`{found}` entries, expected at most `{ENTRIES_MAX}`");
    match found <= ENTRIES_MAX {
        true => Ok(()),
        false => Err(ShipError::document(DOCUMENT, place, message)),
    }
}

/// Longest index or manifest that is read, in bytes: what registries take (distribution's limit on pull).
pub const DOCUMENT_BYTES_MAX: u64 = 4 << 20;

/// Most entries of a document. Chosen, above the parts that a bundle in another order may have.
const ENTRIES_MAX: usize = 16_384;

const DOCUMENT: &str = "the manifest";

pub(crate) const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// ModelPack's types (model-spec 0.0.7): registries and tools that know them show the model.
pub(crate) const MODEL_TYPE: &str = "application/vnd.cncf.model.manifest.v1+json";
pub(crate) const CONFIG_TYPE: &str = "application/vnd.cncf.model.config.v1+json";
pub(crate) const WEIGHT_TYPE: &str = "application/vnd.cncf.model.weight.v1.raw";
pub(crate) const SETTINGS_TYPE: &str = "application/vnd.cncf.model.weight.config.v1.raw";
pub(crate) const DOC_TYPE: &str = "application/vnd.cncf.model.doc.v1.raw";

/// Annotation with the path of a layer's file, as ModelPack has it.
pub(crate) const FILE_PATH: &str = "org.cncf.model.filepath";
/// Annotation with the name of a layer's part.
pub(crate) const PART: &str = "heg.part";
/// Annotation with the kind of devices that a manifest is for.
pub(crate) const SLICE: &str = "heg.slice";
/// Annotation with the needs of a slice's blobs, e.g. `compiler=8.4;npu=4000;elf=1.2.0`.
pub(crate) const NPU: &str = "heg.npu";
/// Annotation with the name of a manifest's bundle.
pub(crate) const BUNDLE: &str = "heg.bundle";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_sha256() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let digest = Digest::of(b"");
        assert_eq!(digest.to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), digest);
        for wrong in [
            "",
            "sha256:",
            "sha256:../../etc/passwd",
            &empty.to_uppercase(),
            &empty[..70],
        ] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_document_carries_is_believed_by_its_digest_alone() {
        let mut blob = Descriptor::embedding(DOC_TYPE, b"statement");
        assert_eq!(blob.embedded().unwrap(), b"statement");
        blob.data = Some(BASE64_STANDARD.encode("another"));
        assert_eq!(blob.embedded(), None);
        blob.data = Some("?".to_owned());
        assert_eq!(blob.embedded(), None);
    }
}
