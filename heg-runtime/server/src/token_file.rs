//! Tokens from a file, one a line. The name of the client may stand in front of the token, and after it a mark of a
//! client that may see the load of all.

use std::io::Read;
use std::path::Path;

use heg_files::{Owners, open_regular};

use super::auth::{Token, Tokens};
use super::platform::others_can_read;
use super::server_error::ServerError;

impl Tokens {
    /// Reads tokens from a file of this user or root that no other user can read or change.
    ///
    /// A line is `TOKEN`, `NAME TOKEN` or `NAME TOKEN operator`; empty lines, and those that begin with `#`, are
    /// ignored.
    ///
    /// # Errors
    /// `TokenFile`, which never shows a token.
    pub fn read(path: &Path) -> Result<Self, ServerError> {
        let error = |problem: String| ServerError::TokenFile {
            path: path.to_owned(),
            problem,
        };
        // A user who can change the file can make tokens; one who can read it can use them.
        let real = Owners::this_user().check(path);
        let real = real.map_err(|source| error(source.to_string()))?;
        let file = open_regular(&real).map_err(|source| error(source.to_string()))?;
        let data = file
            .metadata()
            .map_err(|source| error(source.to_string()))?;
        if let Some(problem) = others_can_read(&data) {
            return Err(error(problem));
        }
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(|source| error(source.to_string()))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(error(format!("expected at most {FILE_BYTES_MAX} bytes")));
        }
        parse(&text).map_err(error)
    }
}

fn parse(text: &str) -> Result<Tokens, String> {
    let mut tokens = Tokens::default();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = text.split_whitespace().take(4).collect();
        let (name, token) = match *words {
            [token] => (None, token),
            [_, OPERATOR] => {
                return Err(format!(
                    "line {line}: expected a name in front of a token that is marked `{OPERATOR}`"
                ));
            }
            [name, token] => (Some(name), token),
            [name, token, OPERATOR] => {
                tokens.allow_operator(name);
                (Some(name), token)
            }
            _ => {
                return Err(format!(
                    "line {line}: expected `TOKEN`, `NAME TOKEN` or `NAME TOKEN {OPERATOR}`, found other words"
                ));
            }
        };
        let token = Token::new(token).ok_or_else(|| {
            format!("line {line}: expected a token of printable ASCII letters, found others")
        })?;
        if tokens.add(token, name).is_err() {
            return Err(format!("line {line}: the token is in an earlier line, too"));
        }
    }
    match tokens.is_empty() {
        true => Err("expected at least one token, found none".to_owned()),
        false => Ok(tokens),
    }
}

/// Marks a client that may see the load of all clients.
const OPERATOR: &str = "operator";

/// Maximum size of the file, in bytes. Chosen: tens of thousands of tokens.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn lines_are_tokens_with_or_without_a_name() {
        parse("# who\n\neditor  abc\n  def\r\nwatch ghi operator\n").unwrap();
        let problem = |text: &str| parse(text).unwrap_err();
        let text = [
            "# nobody\n",
            "a b c\n",
            "abc operator\n",
            "abc\n\nother abc\n",
            "naïve\n",
        ]
        .map(problem)
        .join("\n");
        insta::assert_snapshot!(text, @r"
        expected at least one token, found none
        line 1: expected `TOKEN`, `NAME TOKEN` or `NAME TOKEN operator`, found other words
        line 1: expected a name in front of a token that is marked `operator`
        line 3: the token is in an earlier line, too
        line 1: expected a token of printable ASCII letters, found others
        ");
    }

    #[test]
    fn a_file_that_others_can_read_or_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::fs::write(&path, "abc\n").unwrap();
        let read = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Tokens::read(&path)
        };
        for (mode, problem) in [
            (0o644, "can read"),
            (0o640, "can read"),
            (0o602, "can write"),
            (0o606, "can write"),
        ] {
            let error = read(mode).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        assert!(!read(0o600).unwrap().is_empty());
        assert!(!read(0o400).unwrap().is_empty());
    }
}
