//! The proof that a registry asks for: the header `WWW-Authenticate`, and what may be sent to whom.

/// A registry's demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Demand {
    /// User and password.
    Basic,
    /// A token, which another address gives.
    Bearer {
        realm: String,
        service: Option<String>,
    },
}

impl Demand {
    /// Reads the header. Of a demand that is not understood: `None`.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let realm = parameter(rest, "realm")?;
        let service = parameter(rest, "service");
        Some(Self::Bearer { realm, service })
    }
}

/// The value of a parameter `name="value"`.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut rest = text;
    while let Some((key, behind)) = rest.split_once("=\"") {
        let (value, behind) = behind.split_once('"')?;
        if key.trim_start_matches([',', ' ']).trim() == name {
            return Some(value.to_owned());
        }
        rest = behind;
    }
    None
}

/// Whether a login for a registry may be sent to the host that gives tokens for it: the same host, or one of the same
/// domain. A registry that names any other gets no login of ours.
pub(crate) fn may_have_login(registry: &str, realm_host: &str) -> bool {
    let name = |host: &str| host.split(':').next().unwrap_or(host).to_ascii_lowercase();
    let (registry_name, realm_name) = (name(registry), name(realm_host));
    if registry_name == realm_name {
        return true;
    }
    let is_address = |host: &str| host.chars().all(|c| c.is_ascii_digit() || c == '.');
    let domain = |host: &str| -> Option<(String, usize)> {
        let labels: Vec<&str> = host.split('.').collect();
        let last = labels.len().checked_sub(2)?;
        Some((labels.get(last..)?.join("."), labels.len()))
    };
    match (domain(&registry_name), domain(&realm_name)) {
        // Two labels alone may be a suffix that strangers share (`co.uk`): one side has to be longer.
        (Some((one, one_labels)), Some((other, other_labels))) => {
            let is_own = one.split('.').next().is_some_and(|label| label.len() > 3);
            one == other
                && is_own
                && one_labels.max(other_labels) > 2
                && !is_address(&registry_name)
        }
        _ => false,
    }
}

/// A text as the value of a query.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_read() {
        let bearer =
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="x""#;
        let expected = Demand::Bearer {
            realm: "https://auth.docker.io/token".to_owned(),
            service: Some("registry.docker.io".to_owned()),
        };
        assert_eq!(Demand::parse(bearer), Some(expected));
        assert_eq!(Demand::parse("Basic realm=\"r\""), Some(Demand::Basic));
        for nonsense in [
            "",
            "Bearer",
            "Bearer realm=\"",
            "Digest realm=\"r\"",
            "Bearer service=\"s\"",
        ] {
            assert_eq!(Demand::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_login_goes_to_its_own_domain_alone() {
        let own = [
            ("registry-1.docker.io", "auth.docker.io"),
            ("registry.gitlab.com", "gitlab.com"),
            ("h.example:5000", "h.example:5001"),
            ("127.0.0.1:5000", "127.0.0.1:5001"),
        ];
        for (registry, realm) in own {
            assert!(may_have_login(registry, realm), "{registry} {realm}");
        }
        let foreign = [
            ("registry.acme.example", "evil.example2"),
            ("registry.acme.example", "acme.example.evil.org"),
            ("shop.co.uk", "evil.co.uk"),
            ("127.0.0.1:5000", "128.0.0.1:5000"),
            ("localhost:5000", "evil.example"),
        ];
        for (registry, realm) in foreign {
            assert!(!may_have_login(registry, realm), "{registry} {realm}");
        }
    }
}
