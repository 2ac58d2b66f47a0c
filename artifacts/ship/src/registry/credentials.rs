//! Credentials as Docker and Podman keep them: read, never stored, never shown.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

/// The files that may have credentials, in the order in which they are asked.
#[derive(Clone, Default)]
pub struct Credentials {
    files: Vec<PathBuf>,
}

/// A user and the word that proves it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) secret: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Login {
    /// The value of the header `Authorization`.
    pub(crate) fn basic(&self) -> String {
        let pair = format!("{}:{}", self.user, self.secret);
        format!("Basic {}", BASE64_STANDARD.encode(pair))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigFile {
    #[serde(default)]
    auths: BTreeMap<String, StoredLogin>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default)]
    creds_store: Option<String>,
}

#[derive(Deserialize)]
struct StoredLogin {
    #[serde(default)]
    auth: Option<String>,
}

/// Answer of one of Docker's helpers.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

impl Credentials {
    /// Credentials in these files, each a `config.json` of Docker or an `auth.json` of Podman.
    pub fn in_files(files: Vec<PathBuf>) -> Self {
        Self { files }
    }

    /// The login for a registry, by the first file that knows one. A file that cannot be read knows none.
    pub(crate) fn of(&self, host: &str) -> Option<Login> {
        self.files.iter().find_map(|path| {
            let text = std::fs::read(path).ok()?;
            let config: ConfigFile = serde_json::from_slice(&text).ok()?;
            config.of(host)
        })
    }
}

impl ConfigFile {
    fn of(&self, host: &str) -> Option<Login> {
        let stored = self.auths.iter().find(|(key, _)| host_of(key) == host);
        let stored = stored.and_then(|(_, stored)| stored.login());
        let helper = self.cred_helpers.get(host).or(self.creds_store.as_ref());
        stored.or_else(|| ask_helper(helper?, host))
    }
}

impl StoredLogin {
    fn login(&self) -> Option<Login> {
        let pair = BASE64_STANDARD.decode(self.auth.as_ref()?).ok()?;
        let pair = String::from_utf8(pair).ok()?;
        let (user, secret) = pair.split_once(':')?;
        Some(Login {
            user: user.to_owned(),
            secret: secret.to_owned(),
        })
    }
}

/// The host of a key, which older versions of Docker wrote as an address.
fn host_of(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// Asks a helper of Docker: the host on its standard input, JSON on its output.
fn ask_helper(helper: &str, host: &str) -> Option<Login> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if helper.is_empty() || !helper.chars().all(is_plain) {
        return None;
    }
    let mut command = Command::new(format!("docker-credential-{helper}"));
    command.arg("get").stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // A helper that does not read it answers nothing useful either.
    let _ = child.stdin.take()?.write_all(host.as_bytes());
    let output = child.wait_with_output().ok()?;
    let answer: HelperAnswer = serde_json::from_slice(&output.stdout).ok()?;
    output.status.success().then_some(Login {
        user: answer.username,
        secret: answer.secret,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_for_its_host_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let text = r#"{"auths": {"https://h.example/v1/": {"auth": "dXNlcjpwYTpzcw=="}, "other:5000": {}}}"#;
        std::fs::write(&path, text).unwrap();
        let credentials = Credentials::in_files(vec![folder.path().join("absent"), path]);
        let login = credentials.of("h.example").unwrap();
        assert_eq!(
            (login.user.as_str(), login.secret.as_str()),
            ("user", "pa:ss")
        );
        assert_eq!(login.basic(), "Basic dXNlcjpwYTpzcw==");
        assert!(!format!("{login:?}").contains("pa:ss"));
        for other in ["example", "other:5000", "h.example:443", "evil.h.example"] {
            assert!(credentials.of(other).is_none(), "{other}");
        }
    }
}
