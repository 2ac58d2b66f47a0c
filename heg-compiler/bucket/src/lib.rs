//! A bucket in which machines share what their compilers made: one of S3, or of what speaks its protocol
//! (`s3://bucket/folder`: MinIO, Ceph, R2, Google's cloud by its interoperable keys), or a folder (`file:///mnt/farm`).
//!
//! Credentials, region and endpoint come from the variables that Amazon's own tools read. Failed requests are repeated. Large
//! files travel in pieces, so that a repeated request costs one piece.

mod folder;
mod requests;
mod s3;

use std::io;
use std::sync::Arc;

use heg_artifacts::SharedPlace;
use url::Url;

use folder::Folder;
use s3::S3Bucket;

/// The bucket at a URL; nothing is asked yet. `setting` returns the value of a variable such as `AWS_REGION`.
///
/// # Errors
///
/// The reason why the URL and the settings give no bucket.
pub fn open(
    url: &str,
    setting: impl Fn(&str) -> Option<String>,
) -> Result<Arc<dyn SharedPlace>, BucketError> {
    let parsed = Url::parse(url).map_err(|source| BucketError::NoUrl {
        found: url.to_owned(),
        source,
    })?;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(BucketError::Credentials);
    }
    match parsed.scheme() {
        "s3" => Ok(Arc::new(S3Bucket::new(&parsed, setting)?)),
        "file" => Ok(Arc::new(Folder::new(&parsed)?)),
        _ => Err(BucketError::Scheme {
            found: url.to_owned(),
        }),
    }
}

/// The reason why a URL gives no bucket.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// The text is no URL.
    #[error("`{found}` is not a URL, expected one such as `s3://bucket/folder`")]
    NoUrl {
        /// The text.
        found: String,
        /// Cause.
        #[source]
        source: url::ParseError,
    },

    /// The URL has a name or a password in it, which would be printed.
    #[error(
        "the URL of the bucket has credentials in it, expected them in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Credentials,

    /// The URL is of another kind.
    #[error("`{found}` is no bucket, expected `s3://bucket/folder` or `file:///folder`")]
    Scheme {
        /// The URL.
        found: String,
    },

    /// The endpoint in the settings is none.
    #[error(
        "AWS_ENDPOINT_URL is `{found}`, expected an address such as `https://minio.example:9000`"
    )]
    Endpoint {
        /// The setting.
        found: String,
    },

    /// The folder cannot be used.
    #[error("cannot use the folder `{url}`")]
    Folder {
        /// The URL.
        url: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
}
