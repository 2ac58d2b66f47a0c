//! Authentication: the holder of a token or, if none is required, any client that addresses this machine by its own
//! name.

use constant_time_eq::constant_time_eq;
use heg_state::StateOwner;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST};

use super::account::Scope;
use super::error::{ApiError, Result};
use super::listen::Transport;
use super::platform::this_user;

/// The header in which Anthropic's clients send their token.
const API_KEY: &str = "x-api-key";

/// A bearer token.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Creates a token; `None` for an empty text, or one that cannot stand in a header.
    pub fn new(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then_some(Self(text))
    }

    /// Compares tokens in constant time.
    fn is(&self, given: &str) -> bool {
        constant_time_eq(self.0.as_bytes(), given.as_bytes())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The tokens that clients may present, with their owners. If empty, no token is required.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    /// Each token with the index of its client in `clients`.
    tokens: Vec<(Token, u32)>,
    clients: Vec<TokenOwner>,
}

/// A client with tokens.
#[derive(Debug, Clone, Default)]
struct TokenOwner {
    name: Option<String>,
    /// Whether the client may see the load of all clients.
    is_operator: bool,
}

/// The load that a client may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The load of all clients.
    Everything,
    /// The client's own load.
    Own,
}

impl Tokens {
    /// Adds a token. All tokens with the same name belong to one client; a token without a name is a client of its own.
    ///
    /// # Errors
    /// The token, if it was added before.
    pub fn add(&mut self, token: Token, name: Option<&str>) -> std::result::Result<(), Token> {
        if self.tokens.iter().any(|(other, _)| other.is(&token.0)) {
            return Err(token);
        }
        let client = self.client_of(name);
        self.tokens.push((token, client as u32));
        Ok(())
    }

    /// Lets a client see the load of all clients.
    pub fn allow_operator(&mut self, name: &str) {
        let client = self.client_of(Some(name));
        if let Some(client) = self.clients.get_mut(client) {
            client.is_operator = true;
        }
    }

    /// Returns the index of a client, and adds the client if the name is new.
    fn client_of(&mut self, name: Option<&str>) -> usize {
        let known = |other: &TokenOwner| name.is_some() && other.name.as_deref() == name;
        self.clients.iter().position(known).unwrap_or_else(|| {
            self.clients.push(TokenOwner {
                name: name.map(str::to_owned),
                is_operator: false,
            });
            self.clients.len() - 1
        })
    }

    /// Returns whether no token is required.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the owner of a token. All tokens are compared, so that the time does not reveal which one matched.
    fn client(&self, given: &str) -> Option<u32> {
        let mut found = None;
        for (token, client) in &self.tokens {
            if token.is(given) {
                found = Some(*client);
            }
        }
        found
    }
}

impl From<Token> for Tokens {
    fn from(token: Token) -> Self {
        Self {
            tokens: vec![(token, 0)],
            clients: vec![TokenOwner::default()],
        }
    }
}

/// Returns the owner of what is kept of a client's prompts for later processes: a name, a user or, for a client without
/// a name, its token. Its place in the server's list is another one when the list changes.
pub(super) fn state_owner(tokens: &Tokens, scope: Scope) -> StateOwner {
    let client = match scope {
        Scope::Loopback => return StateOwner::new("loopback", b""),
        Scope::User(user) => return StateOwner::new("user", &user.to_le_bytes()),
        Scope::Client(client) => client,
    };
    let named = tokens.clients.get(client as usize);
    match named.and_then(|owner| owner.name.as_deref()) {
        Some(name) => StateOwner::new("client", name.as_bytes()),
        None => {
            let mut own = tokens.tokens.iter().filter(|(_, of)| *of == client);
            let token = own.next().map_or("", |(token, _)| &token.0);
            StateOwner::new("token", token.as_bytes())
        }
    }
}

/// Authenticates a client: checks its token or, if none is required, that its `Host` header names this machine.
///
/// A web page whose name resolves to this machine (DNS rebinding) can reach a server on loopback, but its `Host` header
/// gives it away.
pub(super) fn scope(tokens: &Tokens, headers: &HeaderMap, transport: Transport) -> Result<Scope> {
    if !tokens.is_empty() {
        let client = given_token(headers).and_then(|given| tokens.client(given));
        return client.map(Scope::Client).ok_or(ApiError::Token);
    }
    if transport == Transport::Tcp {
        check_host(headers)?;
    }
    Ok(transport.scope())
}

/// Returns the token of a head: a bearer token or, where there is no `Authorization`, the key of Anthropic's clients.
fn given_token(headers: &HeaderMap) -> Option<&str> {
    if !headers.contains_key(AUTHORIZATION) {
        return headers.get(API_KEY)?.to_str().ok();
    }
    let (scheme, given) = text(headers, &AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| given.trim())
}

/// Returns the load that a client may see. If all are one client, there is no other client's load to hide.
pub(super) fn view(tokens: &Tokens, scope: Scope, transport: Transport) -> View {
    let owner = match scope {
        Scope::Client(client) => tokens.clients.get(client as usize),
        Scope::Loopback | Scope::User(_) => return View::Everything,
    };
    let is_alone = tokens.clients.len() == 1;
    let is_our_user = matches!(transport, Transport::Local { user } if user == this_user());
    match is_alone || is_our_user || owner.is_some_and(|owner| owner.is_operator) {
        true => View::Everything,
        false => View::Own,
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
        assert_eq!(format!("{token:?}"), "Token(…)");
        let tokens = Tokens::from(token);
        let check = |value: &str, transport| {
            scope(&tokens, &headers("authorization", value), transport).is_ok()
        };
        for transport in [Transport::Tcp, Transport::Local { user: 1000 }] {
            assert!(check("Bearer s3cret", transport) && check("bearer s3cret", transport));
            for wrong in [
                "Bearer s3cre",
                "Bearer s3cretx",
                "Bearer x3cret",
                "s3cret",
                "Basic s3cret",
            ] {
                assert!(!check(wrong, transport), "{wrong}");
            }
        }
        assert!(Token::new("").is_none() && Token::new("a b").is_none());
    }

    #[test]
    fn the_token_may_come_as_the_key_of_anthropics_clients() {
        let tokens = Tokens::from(Token::new("s3cret").unwrap());
        let is_known = |headers: &HeaderMap| scope(&tokens, headers, Transport::Tcp).is_ok();
        assert!(is_known(&headers("x-api-key", "s3cret")));
        assert!(!is_known(&headers("x-api-key", "other")));
        assert!(!is_known(&headers("x-api-key", "Bearer s3cret")));
        // `Authorization` counts where both are there.
        let mut both = headers("x-api-key", "s3cret");
        both.insert("authorization", "Bearer other".parse().unwrap());
        assert!(!is_known(&both));
        both.insert("authorization", "Bearer s3cret".parse().unwrap());
        assert!(is_known(&both));
    }

    #[test]
    fn a_token_says_who_the_client_is() {
        let mut tokens = Tokens::default();
        let token = |text: &str| Token::new(text).unwrap();
        tokens.add(token("old"), Some("editor")).unwrap();
        tokens.add(token("mail"), None).unwrap();
        tokens.add(token("new"), Some("editor")).unwrap();
        tokens.add(token("cron"), None).unwrap();
        assert!(tokens.add(token("mail"), Some("other")).is_err());
        let who = |text: &str, transport| {
            scope(
                &tokens,
                &headers("authorization", &format!("Bearer {text}")),
                transport,
            )
            .ok()
        };
        for transport in [Transport::Tcp, Transport::Local { user: 1000 }] {
            assert_eq!(who("old", transport), Some(Scope::Client(0)));
            assert_eq!(who("new", transport), Some(Scope::Client(0)));
            assert_eq!(who("mail", transport), Some(Scope::Client(1)));
            assert_eq!(who("cron", transport), Some(Scope::Client(2)));
            assert_eq!(who("editor", transport), None);
        }
    }

    #[test]
    fn what_is_kept_belongs_to_a_name_or_token_and_not_to_a_place_in_the_list() {
        let token = |text: &str| Token::new(text).unwrap();
        let list = |lines: &[(&str, Option<&str>)]| {
            let mut tokens = Tokens::default();
            for (text, name) in lines {
                tokens.add(token(text), *name).unwrap();
            }
            tokens
        };
        let before = list(&[("a", Some("editor")), ("b", None), ("c", None)]);
        // The first has gone, and the editor has another token.
        let after = list(&[("c", None), ("b", None), ("z", Some("editor"))]);
        let owner = |tokens: &Tokens, place| state_owner(tokens, Scope::Client(place));
        assert_eq!(owner(&before, 0), owner(&after, 2));
        assert_eq!(owner(&before, 1), owner(&after, 1));
        assert_eq!(owner(&before, 2), owner(&after, 0));
        let all = [
            Scope::Loopback,
            Scope::User(0),
            Scope::User(1),
            Scope::Client(0),
        ];
        for (at, scope) in all.iter().enumerate() {
            let others = all.iter().skip(at + 1);
            let own = state_owner(&before, *scope);
            assert!(
                others
                    .into_iter()
                    .all(|other| state_owner(&before, *other) != own)
            );
        }
    }

    #[test]
    fn an_operator_sees_the_load_of_all() {
        let mut tokens = Tokens::default();
        let token = |text: &str| Token::new(text).unwrap();
        let see =
            |tokens: &Tokens, client, transport| view(tokens, Scope::Client(client), transport);
        tokens.add(token("ours"), Some("editor")).unwrap();
        assert_eq!(see(&tokens, 0, Transport::Tcp), View::Everything, "alone");
        tokens.add(token("theirs"), Some("watch")).unwrap();
        tokens.allow_operator("watch");
        assert_eq!(see(&tokens, 0, Transport::Tcp), View::Own);
        assert_eq!(see(&tokens, 1, Transport::Tcp), View::Everything);
        let user = this_user();
        assert_eq!(see(&tokens, 0, Transport::Local { user }), View::Everything);
        let user = user + 1;
        assert_eq!(see(&tokens, 0, Transport::Local { user }), View::Own);
        let anybody = view(&Tokens::default(), Scope::Loopback, Transport::Tcp);
        assert_eq!(anybody, View::Everything);
    }

    #[test]
    fn without_tokens_the_transport_says_who_the_client_is() {
        let who =
            |transport| scope(&Tokens::default(), &headers("host", "localhost"), transport).ok();
        assert_eq!(who(Transport::Tcp), Some(Scope::Loopback));
        assert_eq!(who(Transport::Local { user: 0 }), Some(Scope::User(0)));
        assert_eq!(
            who(Transport::Local { user: 1000 }),
            Some(Scope::User(1000))
        );
    }

    #[test]
    fn without_a_token_foreign_names_are_refused() {
        let check = |host: &str, transport| {
            scope(&Tokens::default(), &headers("host", host), transport).is_ok()
        };
        for own in [
            "localhost",
            "localhost:8080",
            "127.0.0.1:80",
            "[::1]:8080",
            "[::1]",
        ] {
            assert!(check(own, Transport::Tcp), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "",
        ] {
            assert!(!check(foreign, Transport::Tcp), "{foreign}");
            assert!(check(foreign, Transport::Local { user: 1000 }));
        }
    }
}
