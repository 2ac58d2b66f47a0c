//! Heads that are refused from every client: those that a proxy may read differently, and those that a browser sends
//! for another site's page.

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderName};
use hyper::http::request::Parts;

use super::error::{ApiError, Result};
use super::fields::describe;

/// Refuses heads that name two different targets.
pub(super) fn check(parts: &Parts) -> Result<()> {
    let wrong = |why| Err(ApiError::Head { why });
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return wrong("it has more than one `Host`");
    }
    let Some(authority) = parts.uri.authority() else {
        return Ok(());
    };
    let is_same = host.is_some_and(|host| {
        host.as_bytes()
            .eq_ignore_ascii_case(authority.as_str().as_bytes())
    });
    match is_same {
        true => Ok(()),
        false => wrong("its target names another host than its `Host`"),
    }
}

/// Refuses requests that a browser sends for another site's page. The page could not read the answer, but it could make
/// the server work.
pub(super) fn check_site(headers: &HeaderMap) -> Result<()> {
    match headers.get(SEC_FETCH_SITE).map(|site| site.as_bytes()) {
        Some(b"cross-site" | b"same-site") => Err(ApiError::ForeignPage),
        // A page of this server, a user who typed the address, and programs that are not browsers.
        _ => Ok(()),
    }
}

/// Refuses heads that do not name a version of Anthropic's Messages API that this server speaks.
pub(super) fn check_version(headers: &HeaderMap) -> Result<()> {
    let found = headers.get(VERSION).map(|version| version.as_bytes());
    match found.map(String::from_utf8_lossy) {
        Some(version) if VERSIONS.contains(&&*version) => Ok(()),
        Some(other) => Err(ApiError::Version {
            found: describe(&other.into()),
        }),
        None => Err(ApiError::Version {
            found: "none".to_owned(),
        }),
    }
}

/// The versions whose documents are the same here: the first, and the one that Anthropic's client of 2026 names.
const VERSIONS: [&str; 2] = ["2023-06-01", "2026-10-21"];

/// The header with the version of Anthropic's API.
const VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// The header in which a browser says from which site the requesting page comes.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn checked(target: &str, headers: &[(&str, &str)]) -> String {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let checked = check(&parts).and_then(|()| check_site(&parts.headers));
        checked.map_or_else(|error| error.to_string(), |()| "passed".to_owned())
    }

    #[test]
    fn a_head_says_once_where_it_goes() {
        assert_eq!(checked("/", &[("host", "localhost:8080")]), "passed");
        assert_eq!(checked("/", &[]), "passed");
        let same = [("host", "localhost:8080")];
        assert_eq!(checked("http://LOCALHOST:8080/", &same), "passed");
        for (target, headers) in [
            ("/", &[("host", "localhost"), ("host", "localhost")][..]),
            ("http://evil.example/", &[("host", "localhost")]),
            ("http://localhost/", &[]),
        ] {
            let error = checked(target, headers);
            assert!(error.starts_with("the head is not clear"), "{error}");
        }
    }

    #[test]
    fn the_version_of_anthropics_api_is_named() {
        let told = |version: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(version) = version {
                headers.insert(VERSION, version.parse().unwrap());
            }
            check_version(&headers).map_or_else(|error| error.to_string(), |()| "passed".to_owned())
        };
        assert_eq!(VERSIONS.map(|it| told(Some(it))), ["passed"; 2]);
        assert!(told(None).ends_with("found none"));
        assert!(told(Some("2023-06-01, 2023-06-01")).ends_with("2023-06-01, 2023-06-01`"));
    }

    #[test]
    fn a_browser_asks_for_pages_of_this_server_only() {
        let from = |site| checked("/", &[("host", "localhost"), ("sec-fetch-site", site)]);
        assert_eq!([from("same-origin"), from("none")], ["passed", "passed"]);
        for foreign in ["cross-site", "same-site"] {
            assert!(from(foreign).contains("page from elsewhere"));
        }
    }
}
