//! Requests: where they go, who is told what, and what of an answer is read.
//!
//! Redirects are followed here, not by the library below, since what matters is who gets the login: nobody but the host
//! that asked for it. TLS everywhere but on this machine, or where the user said so of a host.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{self, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, AsSendBody, Body, SendBody};

use super::auth::{Demand, encoded, may_have_login};
use super::credentials::Credentials;
use crate::error::{RECEIVE, ShipError};

/// Sends requests and remembers tokens.
pub(crate) struct Client {
    agent: Agent,
    credentials: Credentials,
    plain_http: Vec<String>,
    /// Values of `Authorization`, by registry, repositories and action.
    known: Mutex<BTreeMap<(String, String, &'static str), String>>,
}

/// A request without a body.
pub(crate) struct Request<'r> {
    pub(crate) method: &'static str,
    pub(crate) url: &'r str,
    /// Host and port of the registry, which alone gets its login.
    pub(crate) registry: &'r str,
    pub(crate) repository: &'r str,
    /// The right that is needed.
    pub(crate) action: &'static str,
    /// Another repository of the registry that is to be read, too.
    pub(crate) also_reads: Option<&'r str>,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Longest time until the last byte of the answer.
    pub(crate) deadline: Duration,
}

/// An answer whose body was not read yet.
pub(crate) struct Answer<'c> {
    pub(crate) status: u16,
    url: String,
    response: http::Response<Body>,
    client: &'c Client,
}

impl Client {
    pub(crate) fn new(credentials: Credentials, plain_http: &[String]) -> Result<Self, ShipError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(system_roots())
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(RESPONSE_MAX))
            .max_idle_connections_per_host(IDLE_MAX)
            .input_buffer_size(BUFFER_BYTES)
            .user_agent(concat!("heg/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.new_agent(),
            credentials,
            plain_http: plain_http.to_vec(),
            known: Mutex::new(BTreeMap::new()),
        })
    }

    /// The scheme for a host.
    pub(crate) fn scheme(&self, host: &str) -> &'static str {
        let is_plain = is_this_machine(host) || self.plain_http.iter().any(|plain| plain == host);
        if is_plain { "http" } else { "https" }
    }

    /// Sends a request, follows redirects and answers a demand for a login once.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Answer<'_>, ShipError> {
        let mut url = request.url.to_owned();
        let mut has_logged_in = false;
        for _ in 0..REDIRECTS_MAX {
            let authorization = self.authorization(request, &url);
            let answer = self.once(request, &url, authorization)?;
            match answer.status {
                301 | 302 | 303 | 307 | 308 if matches!(request.method, "GET" | "HEAD") => {
                    url = answer.location()?;
                }
                401 if !has_logged_in && self.is_registry(request, &url) => {
                    has_logged_in = true;
                    self.log_in(request, &answer)?;
                }
                401 | 403 if self.is_registry(request, &url) => return Err(denied(request)),
                _ => return Ok(answer),
            }
        }
        Err(address(&url, "it is one redirect too many"))
    }

    /// Sends a body, to where an earlier answer said. Nothing is sent twice.
    pub(crate) fn upload(
        &self,
        request: &Request<'_>,
        bytes: u64,
        content: &mut dyn Read,
    ) -> Result<Answer<'_>, ShipError> {
        let authorization = self.authorization(request, request.url);
        let mut builder = self.agent.put(request.url);
        for (name, value) in &request.headers {
            builder = builder.header(*name, value);
        }
        if let Some(authorization) = authorization {
            builder = builder.header("Authorization", authorization);
        }
        let builder = builder.header("Content-Length", bytes.to_string());
        let config = builder.config().timeout_global(Some(request.deadline));
        let sent = config.build().send(SendBody::from_reader(content));
        let answer = self.answer(request.url, sent)?;
        match answer.status {
            401 | 403 => Err(denied(request)),
            _ => Ok(answer),
        }
    }

    fn once(
        &self,
        request: &Request<'_>,
        url: &str,
        authorization: Option<String>,
    ) -> Result<Answer<'_>, ShipError> {
        let mut builder = http::Request::builder().method(request.method).uri(url);
        for (name, value) in &request.headers {
            builder = builder.header(*name, value);
        }
        if let Some(authorization) = authorization {
            builder = builder.header("Authorization", authorization);
        }
        let sent = match request.method {
            "POST" => self.run(builder.body(SendBody::none()), request.deadline),
            _ => self.run(builder.body(()), request.deadline),
        };
        self.answer(url, sent)
    }

    fn run<B: AsSendBody>(
        &self,
        built: Result<http::Request<B>, http::Error>,
        deadline: Duration,
    ) -> Result<http::Response<Body>, ureq::Error> {
        let configured = self.agent.configure_request(built?);
        let configured = configured.timeout_recv_body(Some(deadline)).build();
        self.agent.run(configured)
    }

    fn answer(
        &self,
        url: &str,
        sent: Result<http::Response<Body>, ureq::Error>,
    ) -> Result<Answer<'_>, ShipError> {
        let response = sent.map_err(|error| ShipError::NoAnswer {
            url: url.chars().take(URL_CHARS_MAX).collect(),
            source: Box::new(error),
        })?;
        Ok(Answer {
            status: response.status().as_u16(),
            url: url.to_owned(),
            response,
            client: self,
        })
    }

    /// Whether an address is that of the registry itself, not of a host to which it sent us.
    fn is_registry(&self, request: &Request<'_>, url: &str) -> bool {
        let is_host = authority(url).is_some_and(|host| host == request.registry);
        is_host && url.starts_with(&format!("{}://", self.scheme(request.registry)))
    }

    fn authorization(&self, request: &Request<'_>, url: &str) -> Option<String> {
        if !self.is_registry(request, url) {
            return None;
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&key(request)).cloned()
    }

    /// Does what a registry demands, as far as the login is for it.
    fn log_in(&self, request: &Request<'_>, answer: &Answer<'_>) -> Result<(), ShipError> {
        let demand = answer
            .header("WWW-Authenticate")
            .and_then(|header| Demand::parse(&header));
        let login = self.credentials.of(request.registry);
        let authorization = match demand {
            Some(Demand::Basic) => login.map(|login| login.basic()),
            Some(Demand::Bearer { realm, service }) => {
                let host = authority(&realm).ok_or_else(|| address(&realm, "it has no host"))?;
                let is_safe = realm.starts_with(&format!("{}://", self.scheme(&host)));
                if !is_safe {
                    return Err(address(&realm, "tokens are not asked for without TLS"));
                }
                let login = login.filter(|_| may_have_login(request.registry, &host));
                let login = login.map(|login| login.basic());
                Some(self.token(request, &realm, service.as_deref(), login)?)
            }
            None => None,
        };
        let authorization = authorization.ok_or_else(|| denied(request))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key(request), authorization);
        Ok(())
    }

    fn token(
        &self,
        request: &Request<'_>,
        realm: &str,
        service: Option<&str>,
        login: Option<String>,
    ) -> Result<String, ShipError> {
        let scope = format!("repository:{}:{}", request.repository, request.action);
        let separator = if realm.contains('?') { '&' } else { '?' };
        let mut url = format!("{realm}{separator}scope={}", encoded(&scope));
        if let Some(other) = request.also_reads {
            let scope = format!("repository:{other}:pull");
            url.push_str(&format!("&scope={}", encoded(&scope)));
        }
        if let Some(service) = service {
            url.push_str(&format!("&service={}", encoded(service)));
        }
        let asked = Request {
            method: "GET",
            headers: Vec::new(),
            deadline: RESPONSE_MAX,
            ..*request
        };
        let answer = self.once(&asked, &url, login)?;
        if answer.status != 200 {
            return Err(denied(request));
        }
        let bytes = answer.read(TOKEN_BYTES_MAX)?;
        let granted: Granted = serde_json::from_slice(&bytes)
            .map_err(|error| ShipError::document("the token", realm, error))?;
        let token = granted.token.or(granted.access_token);
        token
            .map(|token| format!("Bearer {token}"))
            .ok_or_else(|| denied(request))
    }
}

#[derive(Deserialize)]
struct Granted {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

impl<'c> Answer<'c> {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let value = self.response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    }

    /// The address that the answer leads to. TLS is not left for a host that did not have to be without.
    pub(crate) fn location(&self) -> Result<String, ShipError> {
        let found = self.header("Location").unwrap_or_default();
        let url = match found.starts_with('/') && !found.starts_with("//") {
            true => {
                let scheme = self.url.split("://").next().unwrap_or_default();
                let host = authority(&self.url).unwrap_or_default();
                format!("{scheme}://{host}{found}")
            }
            false => found,
        };
        let host = authority(&url).ok_or_else(|| address(&url, "it has no host"))?;
        let is_plain = url.starts_with("http://");
        if !is_plain && !url.starts_with("https://") {
            return Err(address(&url, "it is neither http nor https"));
        }
        if is_plain && self.client.scheme(&host) != "http" {
            return Err(address(&url, "it leaves TLS"));
        }
        // One that leads from elsewhere into this machine would ask services that trust whoever asks from here.
        let came_from = authority(&self.url).unwrap_or_default();
        if is_this_machine(&host) && !is_this_machine(&came_from) {
            return Err(address(&url, "it leads into this machine"));
        }
        Ok(url)
    }

    /// Reads the body, which must not be longer than this.
    pub(crate) fn read(self, most_bytes: u64) -> Result<Vec<u8>, ShipError> {
        let url = self.url.clone();
        let mut bytes = Vec::new();
        let read = self
            .reader()
            .take(most_bytes.saturating_add(1))
            .read_to_end(&mut bytes);
        read.map_err(ShipError::io(RECEIVE, &url))?;
        match bytes.len() as u64 <= most_bytes {
            true => Ok(bytes),
            false => {
                let message = format!("more than `{most_bytes}` bytes");
                Err(ShipError::document("the answer", url, message))
            }
        }
    }

    /// The body.
    pub(crate) fn reader(self) -> impl Read + use<> {
        let body = self.response.into_body();
        body.into_with_config().limit(u64::MAX).reader()
    }

    /// The error for a status that is of no use.
    pub(crate) fn unexpected(self, expected: &'static str) -> ShipError {
        let (url, status) = (self.url.clone(), self.status);
        let said = self
            .read(SAID_BYTES_MAX)
            .ok()
            .and_then(|bytes| said(&bytes));
        ShipError::Status {
            url: url.chars().take(URL_CHARS_MAX).collect(),
            status,
            expected,
            detail: said.map(|said| format!(" ({said})")).unwrap_or_default(),
        }
    }
}

/// The message in a registry's error document.
fn said(bytes: &[u8]) -> Option<String> {
    let document: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let message = document.get("errors")?.get(0)?.get("message")?.as_str()?;
    Some(message.chars().take(URL_CHARS_MAX).collect())
}

fn key(request: &Request<'_>) -> (String, String, &'static str) {
    (
        request.registry.to_owned(),
        format!(
            "{} {}",
            request.repository,
            request.also_reads.unwrap_or_default()
        ),
        request.action,
    )
}

fn denied(request: &Request<'_>) -> ShipError {
    ShipError::Denied {
        host: request.registry.to_owned(),
        action: match request.action {
            "pull" => "read from there",
            _ => "write there",
        },
    }
}

fn address(url: &str, reason: &'static str) -> ShipError {
    ShipError::Address {
        url: url.chars().take(URL_CHARS_MAX).collect(),
        reason,
    }
}

/// Host and port of an address; `None` for one that has none, or has a user's name.
pub(super) fn authority(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let authority = uri.authority()?.as_str();
    (!authority.contains('@')).then(|| authority.to_owned())
}

/// Whether a host is this machine: its name, an address of the loopback in either form, or no address, which Linux
/// takes for the loopback.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    name == "localhost"
        || name
            .parse::<std::net::IpAddr>()
            .map(|address| address.to_canonical())
            .is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}

/// The certificates that the system trusts. A system without any trusts nobody, and requests say so.
fn system_roots() -> RootCerts {
    let found = rustls_native_certs::load_native_certs();
    let certificates = found.certs.into_iter();
    let certificates = certificates.map(|der| Certificate::from_der(der.as_ref()).to_owned());
    RootCerts::Specific(Arc::new(certificates.collect()))
}

/// Longest times until a connection stands, and until an answer begins. Chosen.
const CONNECT_MAX: Duration = Duration::from_secs(15);
const RESPONSE_MAX: Duration = Duration::from_secs(60);

/// Connections that are kept for the next range.
const IDLE_MAX: usize = 64;

/// Bytes that are read at a time. Chosen.
const BUFFER_BYTES: usize = 256 << 10;

/// Most addresses that a request goes through. Chosen: registries lead to one other.
const REDIRECTS_MAX: usize = 6;

/// Longest token, and longest error document that is read, in bytes. Chosen.
const TOKEN_BYTES_MAX: u64 = 1 << 20;
const SAID_BYTES_MAX: u64 = 64 << 10;

/// Most characters of an address that an error quotes: links of clouds have long queries.
const URL_CHARS_MAX: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_each_of_its_names() {
        let own = [
            "localhost",
            "localhost:5000",
            "127.0.0.1:5000",
            "127.8.0.1",
            "[::1]:5000",
            "[::ffff:127.0.0.1]:5000",
            "0.0.0.0:5000",
            "[::]:5000",
        ];
        for host in own {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "localhost.example",
            "10.0.0.1",
            "[fe80::1]:443",
            "128.0.0.1",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
