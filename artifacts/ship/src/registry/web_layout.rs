//! An OCI image layout behind any web server: `index.json` and `blobs/sha256` below an address.

use std::io::Read;
use std::ops::Range;
use std::time::Duration;

use crate::error::ShipError;
use crate::oci::{DOCUMENT_BYTES_MAX, Digest, Index};
use crate::source::{BundleSource, SHORT_DEADLINE, tagged_entry};

use super::client::{Client, Request, authority};
use super::range::blob_range;
use super::{Credentials, PULL};

/// A layout below an address.
pub(crate) struct WebLayout {
    client: Client,
    host: String,
    /// The address, which ends in a slash.
    url: String,
}

impl WebLayout {
    /// The layout below `url`, which starts with `https://` (`http://` for this machine and for hosts of `plain_http`).
    ///
    /// Errors: [`ShipError::Address`].
    pub(crate) fn new(
        url: &str,
        credentials: Credentials,
        plain_http: &[String],
    ) -> Result<Self, ShipError> {
        let wrong = |reason| ShipError::Address {
            url: url.to_owned(),
            reason,
        };
        let client = Client::new(credentials, plain_http)?;
        let host = authority(url).ok_or_else(|| wrong("it has no host"))?;
        let is_right = url.starts_with(&format!("{}://", client.scheme(&host)));
        if !is_right {
            return Err(wrong(
                "it does not begin with `https://`, and its host is not one that is asked without TLS",
            ));
        }
        Ok(Self {
            client,
            host,
            url: format!("{}/", url.trim_end_matches('/')),
        })
    }

    fn request<'r>(&'r self, url: &'r str) -> Request<'r> {
        Request {
            method: "GET",
            url,
            registry: &self.host,
            repository: "",
            action: PULL,
            also_reads: None,
            headers: Vec::new(),
            deadline: SHORT_DEADLINE,
        }
    }

    fn document(&self, path: &str) -> Result<Vec<u8>, ShipError> {
        let url = format!("{}{path}", self.url);
        let answer = self.client.send(&self.request(&url))?;
        match answer.status {
            200 => answer.read(DOCUMENT_BYTES_MAX),
            404 => Err(ShipError::Missing {
                what: format!("`{path}`"),
                place: self.url.clone(),
            }),
            _ => Err(answer.unexpected("200")),
        }
    }
}

impl BundleSource for WebLayout {
    fn place(&self) -> String {
        self.url.clone()
    }

    fn tagged(&self, tag: &str) -> Result<Vec<u8>, ShipError> {
        let index = Index::parse(&self.document("index.json")?, &self.url)?;
        self.manifest(&tagged_entry(&index, tag, &self.url)?.digest)
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>, ShipError> {
        self.document(&format!("blobs/sha256/{}", digest.hex()))
    }

    fn blob(
        &self,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        let url = format!("{}blobs/sha256/{}", self.url, digest.hex());
        let mut request = self.request(&url);
        request.deadline = deadline;
        blob_range(&self.client, request, digest, range, self.place())
    }
}
