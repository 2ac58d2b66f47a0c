//! A bucket of S3, or of what speaks its protocol.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;

use heg_artifacts::SharedPlace;
use rusty_s3::actions::{
    AbortMultipartUpload, CompleteMultipartUpload, CreateMultipartUpload, DeleteObject, GetObject,
    HeadObject, PutObject, S3Action, UploadPart,
};
use rusty_s3::{Bucket, Credentials, UrlStyle};
use ureq::http::header;
use url::Url;

use crate::BucketError;
use crate::requests::{Asked, Granted, Requests};

/// A bucket, or a folder of one.
#[derive(Debug)]
pub(crate) struct S3Bucket {
    label: String,
    /// Beginning of all names.
    folder: String,
    bucket: Bucket,
    /// `None` for a bucket that everybody may use.
    credentials: Option<Credentials>,
    requests: Requests,
}

impl S3Bucket {
    pub(crate) fn new(
        url: &Url,
        setting: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, BucketError> {
        let no_bucket = || BucketError::Scheme {
            found: url.to_string(),
        };
        let name = url.host_str().ok_or_else(no_bucket)?.to_owned();
        let folder = url.path().trim_matches('/');
        let region = setting("AWS_REGION").or_else(|| setting("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint = setting("AWS_ENDPOINT_URL_S3").or_else(|| setting("AWS_ENDPOINT_URL"));
        // Other servers seldom have a name for each bucket.
        let (endpoint, style) = match endpoint {
            Some(endpoint) => (endpoint, UrlStyle::Path),
            None => (
                format!("https://s3.{region}.amazonaws.com"),
                UrlStyle::VirtualHost,
            ),
        };
        let no_endpoint = || BucketError::Endpoint {
            found: endpoint.clone(),
        };
        let address = Url::parse(&endpoint).map_err(|_| no_endpoint())?;
        let bucket = Bucket::new(address, style, name, region).map_err(|_| no_endpoint())?;
        let key = setting("AWS_ACCESS_KEY_ID").zip(setting("AWS_SECRET_ACCESS_KEY"));
        let credentials = key.map(|(key, secret)| match setting("AWS_SESSION_TOKEN") {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        });
        Ok(Self {
            label: url.to_string(),
            folder: match folder {
                "" => String::new(),
                folder => format!("{folder}/"),
            },
            bucket,
            credentials,
            requests: Requests::new(),
        })
    }

    fn object(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    /// Sends what an action needs, and reads an answer of at most a few lines.
    fn ask<'a, A: S3Action<'a>>(
        &self,
        method: &'static str,
        body: Option<&[u8]>,
        action: impl Fn() -> A,
    ) -> io::Result<Granted> {
        let asked = Asked {
            method,
            body,
            range: None,
            answer_bytes_max: DOCUMENT_BYTES_MAX,
        };
        self.requests.send(&asked, || action().sign(VALID))
    }

    /// Sends a file in pieces, which the bucket then puts together.
    fn send_pieces(&self, object: &str, file: &mut File) -> io::Result<()> {
        let keys = self.credentials.as_ref();
        let begun = self.ask("POST", Some(&[]), || {
            CreateMultipartUpload::new(&self.bucket, keys, object)
        })?;
        let begun = text(&begun)?;
        let begun = CreateMultipartUpload::parse_response(begun).map_err(io::Error::other)?;
        let upload = begun.upload_id();
        let sent = self.send_all(object, upload, file);
        if sent.is_err() {
            // What failed first is said, whether or not the bucket forgets the pieces that it has.
            let _ = self.ask("DELETE", None, || {
                AbortMultipartUpload::new(&self.bucket, keys, object, upload)
            });
        }
        sent
    }

    fn send_all(&self, object: &str, upload: &str, file: &mut File) -> io::Result<()> {
        let keys = self.credentials.as_ref();
        let mut tags: Vec<String> = Vec::new();
        let mut piece = Vec::new();
        for number in 1.. {
            piece.clear();
            (&mut *file).take(PIECE_BYTES).read_to_end(&mut piece)?;
            if piece.is_empty() {
                break;
            }
            let sent = self.ask("PUT", Some(&piece), || {
                UploadPart::new(&self.bucket, keys, object, number, upload)
            })?;
            let tag = sent.header(header::ETAG);
            let tag = tag.ok_or_else(|| io::Error::other("the bucket names no piece"))?;
            tags.push(tag.to_owned());
        }
        let complete = || {
            let tags = tags.iter().map(String::as_str);
            CompleteMultipartUpload::new(&self.bucket, keys, object, upload, tags)
        };
        let done = self.ask("POST", Some(complete().body().as_bytes()), complete)?;
        // An answer that was begun with status 200 may still say that it failed.
        match text(&done)?.contains("<Error>") {
            true => Err(io::Error::other(
                "the bucket cannot put the pieces together",
            )),
            false => Ok(()),
        }
    }
}

impl SharedPlace for S3Bucket {
    fn label(&self) -> &str {
        &self.label
    }

    fn length(&self, name: &str) -> io::Result<Option<u64>> {
        let (object, keys) = (self.object(name), self.credentials.as_ref());
        match self.ask("HEAD", None, || {
            HeadObject::new(&self.bucket, keys, &object)
        }) {
            Ok(found) => match found.length() {
                Some(bytes) => Ok(Some(bytes)),
                None => Err(io::Error::other("the bucket says no length")),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn fetch(&self, name: &str, bytes: u64, to: &mut dyn Write) -> io::Result<()> {
        let (object, keys) = (self.object(name), self.credentials.as_ref());
        let mut start = 0;
        while start < bytes {
            let end = bytes.min(start + PIECE_BYTES);
            let asked = Asked {
                method: "GET",
                body: None,
                range: Some(format!("bytes={start}-{}", end - 1)),
                answer_bytes_max: end - start,
            };
            let sign = || GetObject::new(&self.bucket, keys, &object).sign(VALID);
            let piece = self.requests.send(&asked, sign)?.body;
            if piece.len() as u64 != end - start {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            to.write_all(&piece)?;
            start = end;
        }
        Ok(())
    }

    fn send(&self, name: &str, from: &Path) -> io::Result<()> {
        let (object, keys) = (self.object(name), self.credentials.as_ref());
        let mut file = File::open(from)?;
        if file.metadata()?.len() > PIECE_BYTES {
            return self.send_pieces(&object, &mut file);
        }
        let mut all = Vec::new();
        file.read_to_end(&mut all)?;
        let action = || PutObject::new(&self.bucket, keys, &object);
        self.ask("PUT", Some(&all), action).map(drop)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (object, keys) = (self.object(name), self.credentials.as_ref());
        match self.ask("DELETE", None, || {
            DeleteObject::new(&self.bucket, keys, &object)
        }) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn text(granted: &Granted) -> io::Result<&str> {
    std::str::from_utf8(&granted.body).map_err(io::Error::other)
}

/// Bytes of a request. Chosen: parts of an upload have 5 MiB or more, and are at most 10 000, so a file has at most 80 GiB.
const PIECE_BYTES: u64 = 8 << 20;

/// Longest document that is read, in bytes. Chosen.
const DOCUMENT_BYTES_MAX: u64 = 1 << 20;

/// The time for which a signature is good. Chosen: clocks of machines differ.
const VALID: Duration = Duration::from_secs(900);
