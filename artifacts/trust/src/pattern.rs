//! Names, and patterns of names.

use std::fmt;

use crate::error::TrustError;

/// A name like `registry.acme.example/chat`, or all names below a prefix like `registry.acme.example/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern {
    prefix: String,
    has_star: bool,
}

impl NamePattern {
    /// Parses a pattern. A star stands at its end, behind a slash, and nowhere else.
    pub(crate) fn parse(text: &str, field: impl FnOnce() -> String) -> Result<Self, TrustError> {
        let (prefix, has_star) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text, false),
        };
        let is_whole = match has_star {
            true => prefix.strip_suffix('/').is_some_and(is_name),
            false => is_name(prefix),
        };
        if !is_whole {
            let expected =
                "a name like `registry.example/chat`, or all below one: `registry.example/*`";
            return Err(TrustError::invalid(DOCUMENT, field(), text, expected));
        }
        let prefix = prefix.to_owned();
        Ok(Self { prefix, has_star })
    }

    /// The part of a name that the star stands for; empty for a pattern without a star. `None` if the name is another.
    pub fn rest<'n>(&self, name: &'n str) -> Option<&'n str> {
        let rest = name.strip_prefix(&self.prefix)?;
        (self.has_star != rest.is_empty()).then_some(rest)
    }

    /// Whether all names of another pattern are among those of this one.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match self.has_star {
            true => other.prefix.starts_with(&self.prefix),
            false => other == self,
        }
    }

    /// The name that the pattern makes of a rest.
    pub(crate) fn with_rest(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix)?;
        f.write_str(if self.has_star { "*" } else { "" })
    }
}

/// Whether a text is a name: parts of letters, digits and `._-:` between slashes, none of them only dots.
pub(crate) fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
        part.chars().all(allowed) && !part.chars().all(|c| c == '.')
    };
    text.len() <= NAME_BYTES_MAX && text.split('/').all(is_part)
}

/// The longest name of a repository that registries take, with room for a host and a port.
const NAME_BYTES_MAX: usize = 512;

const DOCUMENT: &str = "trust policy";
