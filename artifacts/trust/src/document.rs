//! Reading of the JSON documents that publishers sign.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::TrustError;

/// A kind of document.
pub(crate) struct SignedDocument {
    /// Its name in errors.
    pub(crate) name: &'static str,
    /// The version in its field `heg` that this program reads.
    pub(crate) version: &'static str,
    pub(crate) bytes_max: u64,
}

/// The field that decides whether the others can be read.
#[derive(Deserialize)]
struct VersionProbe {
    heg: String,
}

impl SignedDocument {
    /// Reads a document that came from somewhere, whose fields are not checked yet.
    ///
    /// Errors: [`TrustError::TooLong`], [`TrustError::Version`], [`TrustError::Parse`].
    pub(crate) fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, TrustError> {
        TrustError::check_length(self.name, bytes, self.bytes_max)?;
        let parse = |error: serde_json::Error| TrustError::Parse {
            document: self.name,
            line: error.line(),
            column: error.column(),
            message: error.to_string(),
        };
        let probe: VersionProbe = serde_json::from_slice(bytes).map_err(parse)?;
        if probe.heg != self.version {
            return Err(TrustError::Version {
                document: self.name,
                found: probe.heg.chars().take(80).collect(),
                expected: self.version.to_owned(),
            });
        }
        serde_json::from_slice(bytes).map_err(parse)
    }
}
