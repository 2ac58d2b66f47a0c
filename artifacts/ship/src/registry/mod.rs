//! A registry: OCI's distribution interface over HTTP, as a source and as a target of bundles.

mod auth;
mod client;
mod credentials;
mod range;
mod web_layout;

use std::io::Read;
use std::ops::Range;
use std::time::Duration;

use heg_artifacts::Bundle;

use crate::artifact::OutgoingBlob;
use crate::error::ShipError;
use crate::fetch::TransferProgress;
use crate::name::ModelName;
use crate::names::SignedRelease;
use crate::oci::{DOCUMENT_BYTES_MAX, Digest, INDEX_TYPE, MANIFEST_TYPE};
use crate::push::{Pushed, Put, Target, push};
use crate::source::{BundleSource, SHORT_DEADLINE};

use client::{Client, Request};
pub use credentials::Credentials;
use range::blob_range;
pub(crate) use web_layout::WebLayout;

/// A repository of a registry.
pub struct Registry {
    client: Client,
    host: String,
    repository: String,
    /// Repositories of the same registry from which it may take blobs.
    sisters: Vec<String>,
}

impl Registry {
    /// The repository of a name. `plain_http` are hosts besides this machine that are asked without TLS.
    ///
    /// Errors: [`ShipError::Name`] for a name without a host, [`ShipError::Address`] if the system's certificates cannot
    /// be read.
    pub fn new(
        name: &ModelName,
        credentials: Credentials,
        plain_http: &[String],
    ) -> Result<Self, ShipError> {
        let host = name.host().ok_or_else(|| ShipError::Name {
            found: name.to_string(),
            expected: "one with a registry, like `registry.example/chat:2026.11`",
        })?;
        Ok(Self {
            client: Client::new(credentials, plain_http)?,
            host: host.to_owned(),
            repository: name.repository().to_owned(),
            sisters: Vec::new(),
        })
    }

    /// The same, for a push: what a sister repository of the registry has is not sent, but mounted from there.
    ///
    /// Errors: [`ShipError::Name`] for a repository of another registry.
    pub fn mounting_from(mut self, sisters: &[ModelName]) -> Result<Self, ShipError> {
        for sister in sisters {
            if sister.host() != Some(self.host.as_str()) {
                return Err(ShipError::Name {
                    found: sister.to_string(),
                    expected: "a repository of the registry that is pushed to",
                });
            }
            self.sisters.push(sister.repository().to_owned());
        }
        Ok(self)
    }

    /// Sends the slices of bundles under a tag. What the registry has already is not sent.
    ///
    /// Errors: [`ShipError::Bundle`], [`ShipError::TrustFile`], and those of requests.
    pub fn push(
        &self,
        tag: &str,
        bundles: &[Bundle],
        signed: Option<&SignedRelease>,
        progress: &dyn TransferProgress,
    ) -> Result<Pushed, ShipError> {
        push(self, tag, bundles, signed, progress)
    }

    fn url(&self, rest: &str) -> String {
        let scheme = self.client.scheme(&self.host);
        format!("{scheme}://{}/v2/{}/{rest}", self.host, self.repository)
    }

    fn request<'r>(
        &'r self,
        method: &'static str,
        url: &'r str,
        action: &'static str,
    ) -> Request<'r> {
        Request {
            method,
            url,
            registry: &self.host,
            repository: &self.repository,
            action,
            also_reads: None,
            headers: Vec::new(),
            deadline: SHORT_DEADLINE,
        }
    }

    /// Whether a sister repository has a blob, and lets us read it.
    fn sister_has(&self, sister: &str, digest: &Digest) -> Result<bool, ShipError> {
        let scheme = self.client.scheme(&self.host);
        let url = format!("{scheme}://{}/v2/{sister}/blobs/{digest}", self.host);
        let mut request = self.request("HEAD", &url, PULL);
        request.repository = sister;
        match self.client.send(&request) {
            Ok(answer) => Ok(answer.status == 200),
            Err(ShipError::Denied { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens an upload and returns where it goes; `None` if the registry mounted the blob from `sister` instead.
    fn open_upload(
        &self,
        digest: &Digest,
        sister: Option<&str>,
    ) -> Result<Option<String>, ShipError> {
        let mount = sister.map(|sister| format!("?mount={digest}&from={sister}"));
        let url = self.url(&format!("blobs/uploads/{}", mount.unwrap_or_default()));
        let mut request = self.request("POST", &url, PUSH);
        request.also_reads = sister;
        request.headers.push(("Content-Length", "0".to_owned()));
        let answer = self.client.send(&request)?;
        match answer.status {
            201 if sister.is_some() => Ok(None),
            202 => answer.location().map(Some),
            _ => Err(answer.unexpected("202")),
        }
    }

    /// Sends a blob to where its upload goes.
    fn upload(
        &self,
        place: &str,
        blob: &OutgoingBlob<'_>,
        progress: &dyn TransferProgress,
    ) -> Result<(), ShipError> {
        let separator = if place.contains('?') { '&' } else { '?' };
        let url = format!("{place}{separator}digest={digest}", digest = blob.digest);
        let mut request = self.request("PUT", &url, PUSH);
        request
            .headers
            .push(("Content-Type", "application/octet-stream".to_owned()));
        request.deadline = UPLOAD_DEADLINE;
        let mut content = ToldReader {
            content: blob.content.reader(),
            progress,
        };
        let answer = self.client.upload(&request, blob.bytes, &mut content)?;
        match answer.status {
            201 => Ok(()),
            _ => Err(answer.unexpected("201")),
        }
    }

    fn document(&self, reference: &str) -> Result<Vec<u8>, ShipError> {
        let url = self.url(&format!("manifests/{reference}"));
        let mut request = self.request("GET", &url, PULL);
        let accepted = format!("{INDEX_TYPE}, {MANIFEST_TYPE}");
        request.headers.push(("Accept", accepted));
        let answer = self.client.send(&request)?;
        match answer.status {
            200 => answer.read(DOCUMENT_BYTES_MAX),
            404 => Err(ShipError::Missing {
                what: format!("`{}:{reference}`", self.repository),
                place: self.host.clone(),
            }),
            _ => Err(answer.unexpected("200")),
        }
    }
}

/// The right to read, and that to write, as registries call them.
const PULL: &str = "pull";
const PUSH: &str = "pull,push";

impl BundleSource for Registry {
    fn place(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    fn tagged(&self, tag: &str) -> Result<Vec<u8>, ShipError> {
        self.document(tag)
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>, ShipError> {
        self.document(&digest.to_string())
    }

    fn blob(
        &self,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        let url = self.url(&format!("blobs/{digest}"));
        let mut request = self.request("GET", &url, PULL);
        request.deadline = deadline;
        blob_range(&self.client, request, digest, range, self.place())
    }
}

impl Target for Registry {
    fn has(&self, digest: &Digest) -> Result<bool, ShipError> {
        let url = self.url(&format!("blobs/{digest}"));
        let answer = self.client.send(&self.request("HEAD", &url, PUSH))?;
        match answer.status {
            200 => Ok(true),
            404 => Ok(false),
            _ => Err(answer.unexpected("200 or 404")),
        }
    }

    fn put(
        &self,
        blob: &OutgoingBlob<'_>,
        progress: &dyn TransferProgress,
    ) -> Result<Put, ShipError> {
        let mut opened = None;
        for sister in &self.sisters {
            if self.sister_has(sister, &blob.digest)? {
                opened = self.open_upload(&blob.digest, Some(sister))?;
                if opened.is_none() {
                    return Ok(Put::Mounted);
                }
                break;
            }
        }
        let opened = match opened {
            Some(opened) => Some(opened),
            None => self.open_upload(&blob.digest, None)?,
        };
        let place = opened.ok_or_else(|| ShipError::Missing {
            what: "address for an upload".to_owned(),
            place: self.place(),
        })?;
        self.upload(&place, blob, progress).map(|()| Put::Sent)
    }

    fn put_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), ShipError> {
        let reference = tag.map_or_else(|| Digest::of(bytes).to_string(), str::to_owned);
        let url = self.url(&format!("manifests/{reference}"));
        let mut request = self.request("PUT", &url, PUSH);
        request
            .headers
            .push(("Content-Type", media_type.to_owned()));
        let answer = self
            .client
            .upload(&request, bytes.len() as u64, &mut &*bytes)?;
        match answer.status {
            201 => Ok(()),
            _ => Err(answer.unexpected("201")),
        }
    }
}

/// Tells how much was read of it.
struct ToldReader<'p, R> {
    content: R,
    progress: &'p dyn TransferProgress,
}

impl<R: Read> Read for ToldReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.progress.arrived(read as u64);
        Ok(read)
    }
}

/// Longest time for one blob on its way to a registry. Chosen: 512 MiB at 150 KB/s.
const UPLOAD_DEADLINE: Duration = Duration::from_secs(3600);
