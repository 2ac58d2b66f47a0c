//! Who may ask: the holder of the token, and where there is none, whoever reaches this machine by its own name.

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST};

use super::account::Scope;
use super::error::{ApiError, Result};
use super::listen::Way;

/// A bearer token.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A token; `None` for an empty text, or one that no header can carry.
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then_some(Self(text))
    }

    /// Whether this is the token, in a time that says nothing of where it differs.
    fn is(&self, given: &str) -> bool {
        let pairs = self.0.bytes().zip(given.bytes());
        let differing = pairs.fold(0, |differing, (a, b)| differing | (a ^ b));
        self.0.len() == given.len() && std::hint::black_box(differing) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Who a client is: checks the token; without one, that the client means this machine.
///
/// A web page whose name was made to point here (DNS rebinding) reaches a server on loopback too, but its `Host`
/// gives it away.
pub(super) fn scope(token: Option<&Token>, headers: &HeaderMap, way: Way) -> Result<Scope> {
    match token {
        Some(token) => {
            let given = text(headers, &AUTHORIZATION).and_then(|value| {
                let (scheme, given) = value.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then(|| given.trim())
            });
            match given {
                Some(given) if token.is(given) => Ok(Scope::Token(0)),
                _ => Err(ApiError::Token),
            }
        }
        None => match way {
            Way::Tcp => check_host(headers).map(|()| Scope::Loopback),
            Way::Unix { user } => Ok(Scope::User(user)),
        },
    }
}

fn check_host(headers: &HeaderMap) -> Result<()> {
    let host = text(headers, &HOST).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
        if is_port { name } else { host }
    });
    match name {
        "localhost" | "127.0.0.1" | "[::1]" => Ok(()),
        _ => Err(ApiError::Host {
            host: host.to_owned(),
        }),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &hyper::header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn the_token_is_asked_for_on_every_way() {
        let token = Token::new("s3cret").unwrap();
        let check =
            |value: &str, way| scope(Some(&token), &headers("authorization", value), way).is_ok();
        for way in [Way::Tcp, Way::Unix { user: 1000 }] {
            assert!(check("Bearer s3cret", way) && check("bearer s3cret", way));
            for wrong in [
                "Bearer s3cre",
                "Bearer s3cretx",
                "Bearer x3cret",
                "s3cret",
                "Basic s3cret",
            ] {
                assert!(!check(wrong, way), "{wrong}");
            }
        }
        assert!(Token::new("").is_none() && Token::new("a b").is_none());
        assert_eq!(format!("{token:?}"), "Token(…)");
    }

    #[test]
    fn without_a_token_foreign_names_are_refused() {
        let check = |host: &str, way| scope(None, &headers("host", host), way).is_ok();
        for own in [
            "localhost",
            "localhost:8080",
            "127.0.0.1:80",
            "[::1]:8080",
            "[::1]",
        ] {
            assert!(check(own, Way::Tcp), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "",
        ] {
            assert!(!check(foreign, Way::Tcp), "{foreign}");
            assert!(check(foreign, Way::Unix { user: 1000 }));
        }
    }
}
