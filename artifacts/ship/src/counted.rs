//! Counts of what a source was asked for and gave.

use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::ShipError;
use crate::oci::Digest;
use crate::source::BundleSource;

/// A source that counts what comes from it.
pub struct CountedSource<'s> {
    inner: &'s dyn BundleSource,
    bytes: AtomicU64,
    requests: AtomicU64,
}

impl<'s> CountedSource<'s> {
    /// The same source, with counts of zero.
    pub fn new(inner: &'s dyn BundleSource) -> Self {
        Self {
            inner,
            bytes: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// Bytes that came so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Requests that were made so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn document(&self, bytes: Result<Vec<u8>, ShipError>) -> Result<Vec<u8>, ShipError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let bytes = bytes?;
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

impl BundleSource for CountedSource<'_> {
    fn place(&self) -> String {
        self.inner.place()
    }

    fn tagged(&self, tag: &str) -> Result<Vec<u8>, ShipError> {
        self.document(self.inner.tagged(tag))
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>, ShipError> {
        self.document(self.inner.manifest(digest))
    }

    fn blob(
        &self,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        self.blob_from(0, digest, range, deadline)
    }

    fn places(&self) -> usize {
        self.inner.places()
    }

    fn blob_from(
        &self,
        first: usize,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let reader = self.inner.blob_from(first, digest, range, deadline)?;
        Ok(Box::new(CountedReader {
            reader,
            bytes: &self.bytes,
        }))
    }
}

struct CountedReader<'s> {
    reader: Box<dyn Read + 's>,
    bytes: &'s AtomicU64,
}

impl Read for CountedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
