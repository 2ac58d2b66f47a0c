//! Names of bundles: `registry.acme.example/chat:2026.11`, as registries have them.

use std::fmt;
use std::str::FromStr;

use crate::error::ShipError;

/// The name of a bundle in a registry, or of one that came from a folder or a file.
///
/// Invariants: the parts of the repository are of lower-case letters, digits and `._-`, none of them only dots; the tag
/// has no separator. So neither leads out of an address or a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName {
    host: Option<String>,
    repository: String,
    tag: String,
}

impl ModelName {
    /// Host and port of the registry; `None` for a name that is known on this machine only.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The repository below the host.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Host and repository without the tag: the name that a publisher signs.
    pub fn signed_name(&self) -> String {
        match &self.host {
            Some(host) => format!("{host}/{}", self.repository),
            None => self.repository.clone(),
        }
    }

    /// The name as the name of a file: bytes other than letters, digits and `._-` as `%2F`.
    pub(crate) fn escaped(&self) -> String {
        let mut escaped = String::new();
        for byte in self.to_string().bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                    escaped.push(char::from(byte));
                }
                _ => escaped.push_str(&format!("%{byte:02X}")),
            }
        }
        escaped
    }

    /// Whether a short name, as a person types it, means this one: the end of its repository, with its tag if it has one.
    pub(crate) fn is_meant_by(&self, short: &str) -> bool {
        let (path, tag) = match short.rsplit_once(':') {
            // A colon before a slash is that of a port.
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (short, None),
        };
        let signed = self.signed_name();
        let rest = signed.strip_suffix(path);
        let is_end = rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
        !path.is_empty() && is_end && tag.is_none_or(|tag| tag == self.tag)
    }
}

impl FromStr for ModelName {
    type Err = ShipError;

    /// Parses `[HOST[:PORT]/]REPOSITORY[:TAG]`. What stands before the first slash is a host if it has a dot or a colon,
    /// or is `localhost`. Without a tag it is `latest`.
    fn from_str(text: &str) -> Result<Self, ShipError> {
        let wrong = || ShipError::Name {
            found: text.chars().take(FOUND_CHARS_MAX).collect(),
            expected: "one like `registry.example/chat:2026.11`",
        };
        if text.len() > NAME_BYTES_MAX {
            return Err(wrong());
        }
        let (host, rest) = match text.split_once('/') {
            Some((host, rest)) if host == "localhost" || host.contains(['.', ':']) => {
                (Some(host), rest)
            }
            _ => (None, text),
        };
        let (repository, tag) = rest.split_once(':').unwrap_or((rest, DEFAULT_TAG));
        let is_right =
            host.is_none_or(is_host) && repository.split('/').all(is_part) && is_tag(tag);
        let name = Self {
            host: host.map(str::to_owned),
            repository: repository.to_owned(),
            tag: tag.to_owned(),
        };
        // Written in full it has a tag, and marks take more room in the name of a file.
        match is_right && name.escaped().len() <= NAME_BYTES_MAX {
            true => Ok(name),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.signed_name(), self.tag)
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let is_name = !host.is_empty() && host.chars().all(allowed) && !host.contains("..");
    is_name && !host.starts_with('.') && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_part(part: &str) -> bool {
    let allowed =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    !part.is_empty() && part.chars().all(allowed) && !part.chars().all(|c| c == '.')
}

fn is_tag(tag: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=128).contains(&tag.len()) && tag.chars().all(allowed) && !tag.starts_with(['.', '-'])
}

/// The tag that stands for a name without one, as registries have it.
const DEFAULT_TAG: &str = "latest";

/// Longest name: escaped, it is still the name of a file. Chosen.
const NAME_BYTES_MAX: usize = 200;

/// Most characters of a wrong name that an error quotes.
const FOUND_CHARS_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> ModelName {
        text.parse().unwrap()
    }

    #[test]
    fn names_have_a_host_a_repository_and_a_tag() {
        let whole = name("registry.acme.example:5000/team/chat:2026.11");
        assert_eq!(whole.host(), Some("registry.acme.example:5000"));
        assert_eq!((whole.repository(), whole.tag()), ("team/chat", "2026.11"));
        assert_eq!(whole.signed_name(), "registry.acme.example:5000/team/chat");
        assert_eq!(
            whole.escaped(),
            "registry.acme.example%3A5000%2Fteam%2Fchat%3A2026.11"
        );
        let local = name("chat");
        assert_eq!(
            (local.host(), local.to_string().as_str()),
            (None, "chat:latest")
        );
    }

    #[test]
    fn a_name_is_as_long_as_the_name_of_a_file() {
        let long = |letters: usize| "a".repeat(letters).parse::<ModelName>();
        // `:latest` is nine bytes there.
        assert!(long(NAME_BYTES_MAX - 9).is_ok());
        assert!(long(NAME_BYTES_MAX - 8).is_err());
    }

    #[test]
    fn what_leads_elsewhere_is_no_name() {
        let wrong = [
            "",
            "/",
            "a//b",
            "..",
            "h.x/..",
            "h.x/../b",
            "h.x/a:b/c",
            "h.x/a:..",
            "h.x:99999/a",
            "h.x/A",
            "h..x/a",
            "a b",
            "h.x/a?b",
            "h.x/a#b",
            "h.x/a%2f",
            "h.x/a@b",
            "user@h.x/a",
            ".h/a",
        ];
        for text in wrong {
            assert!(text.parse::<ModelName>().is_err(), "{text}");
        }
        assert!("a".repeat(201).parse::<ModelName>().is_err());
    }

    #[test]
    fn a_short_name_means_the_end_of_a_repository() {
        let whole = name("registry.acme.example/team/chat:stable");
        let meant = [
            "chat",
            "team/chat",
            "chat:stable",
            "registry.acme.example/team/chat",
        ];
        assert!(meant.iter().all(|short| whole.is_meant_by(short)));
        let with_port = name("127.0.0.1:5000/team/chat:stable");
        assert!(with_port.is_meant_by("127.0.0.1:5000/team/chat"));
        let other = ["", "hat", "chat:2026", "am/chat", "chat/", ":stable"];
        assert!(other.iter().all(|short| !whole.is_meant_by(short)));
    }

    proptest! {
        #[test]
        fn a_name_is_read_as_it_was_written(text in "[a-z0-9.:/_-]{0,40}") {
            if let Ok(name) = text.parse::<ModelName>() {
                prop_assert_eq!(name.to_string().parse::<ModelName>().unwrap(), name.clone());
                prop_assert!(!name.escaped().contains('/'));
            }
        }
    }
}
