//! Requests, repeated while a server or the line to it is at fault.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::http::{HeaderName, Request, Response, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use url::Url;

/// A client that sends requests, over connections that it keeps.
#[derive(Debug)]
pub(crate) struct Requests(Agent);

/// A request but for its address, which is signed anew for each try, since a time is in it.
pub(crate) struct Asked<'b> {
    pub(crate) method: &'static str,
    pub(crate) body: Option<&'b [u8]>,
    /// First byte wanted and the last one, in the form of a header; `None` for all.
    pub(crate) range: Option<String>,
    /// Longest answer, in bytes.
    pub(crate) answer_bytes_max: u64,
}

/// An answer that grants what was asked for.
pub(crate) struct Granted {
    head: ureq::http::response::Parts,
    pub(crate) body: Vec<u8>,
}

impl Granted {
    /// The value of a header, if it is a text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// The length of what was asked about, in bytes.
    pub(crate) fn length(&self) -> Option<u64> {
        self.header(header::CONTENT_LENGTH)?.parse().ok()
    }
}

/// A try that failed.
struct Failed {
    error: io::Error,
    /// Whether another try may succeed.
    may_pass: bool,
}

impl Requests {
    pub(crate) fn new() -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // Where a system trusts nobody, the first request says so.
        let trusted = rustls_native_certs::load_native_certs().certs;
        let trusted = trusted.iter();
        let trusted = trusted.map(|der| Certificate::from_der(der.as_ref()).to_owned());
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::Specific(Arc::new(trusted.collect())))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(REQUEST_MAX))
            .user_agent(concat!("hegc/", env!("CARGO_PKG_VERSION")))
            .build();
        Self(config.new_agent())
    }

    /// Sends a request and reads the answer.
    ///
    /// Errors: of the kind [`ErrorKind::NotFound`] for status 404; other refusals at once; and after the last try those of the
    /// line, and of a server that is at fault.
    pub(crate) fn send(&self, asked: &Asked<'_>, address: impl Fn() -> Url) -> io::Result<Granted> {
        let mut pauses = PAUSES.iter();
        loop {
            let failed = match self.once(asked, &address()) {
                Ok(granted) => return Ok(granted),
                Err(failed) => failed,
            };
            match pauses.next() {
                Some(pause) if failed.may_pass => thread::sleep(*pause),
                _ => return Err(failed.error),
            }
        }
    }

    fn once(&self, asked: &Asked<'_>, address: &Url) -> Result<Granted, Failed> {
        let line = |error: io::Error| Failed {
            error,
            may_pass: true,
        };
        let mut request = Request::builder()
            .method(asked.method)
            .uri(address.as_str());
        if let Some(range) = &asked.range {
            request = request.header(header::RANGE, range);
        }
        let sent = match asked.body {
            Some(body) => request.body(body).map(|request| self.0.run(request)),
            None => request.body(()).map(|request| self.0.run(request)),
        };
        let answer = sent.map_err(|error| Failed {
            error: io::Error::other(error),
            may_pass: false,
        })?;
        let (head, mut body) = answer.map_err(|error| line(error.into_io()))?.into_parts();
        let mut bytes = Vec::new();
        let mut reader = body.as_reader().take(asked.answer_bytes_max);
        reader.read_to_end(&mut bytes).map_err(line)?;
        match head.status.is_success() {
            true => Ok(Granted { head, body: bytes }),
            false => Err(refused(&Response::from_parts(head, bytes))),
        }
    }
}

/// The error of an answer that grants nothing, with the reason that S3 gives in a document.
fn refused(answer: &Response<Vec<u8>>) -> Failed {
    let status = answer.status();
    let text = String::from_utf8_lossy(answer.body());
    let reason = text.split_once("<Code>");
    let reason = reason.and_then(|(_, rest)| rest.split_once("</Code>"));
    let said = match reason {
        Some((reason, _)) => format!("the bucket answers {status}: {}", reason.escape_debug()),
        None => format!("the bucket answers {status}"),
    };
    let kind = match status.as_u16() {
        404 => ErrorKind::NotFound,
        401 | 403 => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    Failed {
        error: io::Error::new(kind, said),
        may_pass: status.is_server_error() || matches!(status.as_u16(), 408 | 429),
    }
}

/// Pauses before further tries. Chosen: a server that restarts is back after the last.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(8),
    Duration::from_secs(15),
];

/// Longest times until a connection stands, and until an answer was read. Chosen: 8 MiB over a line of 0.1 MB/s.
const CONNECT_MAX: Duration = Duration::from_secs(15);
const REQUEST_MAX: Duration = Duration::from_secs(90);
