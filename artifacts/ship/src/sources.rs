//! The places that a machine asks for a name: aliases for people, and mirrors before a registry.
//!
//! A mirror is trusted with nothing but availability: whatever comes from it is hashed, and signed by whom the name's
//! policy says.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::error::ShipError;
use crate::name::ModelName;
use crate::oci::Digest;
use crate::registry::{Credentials, Registry, WebLayout};
use crate::source::BundleSource;

/// A machine's aliases and mirrors, as `sources.ron` has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sources {
    aliases: BTreeMap<String, ModelName>,
    mirrors: Vec<Mirror>,
}

/// Copies of some repositories.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mirror {
    /// Beginning of names, e.g. `registry.acme.example/`.
    prefix: String,
    /// Replacements of the prefix, the first to be asked first: a registry with a path, `mirror.example/acme/`, or a layout
    /// behind a web server, `https://files.example/heg/`.
    at: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Sources")]
struct RawSources {
    revision: u32,
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    #[serde(default)]
    mirrors: Vec<Mirror>,
}

impl Sources {
    /// Reads the first of these files that exists; without any there are no aliases and no mirrors.
    ///
    /// Errors: [`ShipError::Io`], [`ShipError::Document`] with line and column.
    pub fn read(files: &[PathBuf]) -> Result<Self, ShipError> {
        for path in files {
            match std::fs::read_to_string(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                read => {
                    let text = read.map_err(ShipError::io("read", path))?;
                    return Self::parse(&text, &path.display().to_string());
                }
            }
        }
        Ok(Self::default())
    }

    /// Reads the text of such a file.
    ///
    /// Errors: [`ShipError::Document`].
    pub fn parse(text: &str, place: &str) -> Result<Self, ShipError> {
        let wrong = |message: String| ShipError::document("the list of sources", place, message);
        let options = ron::Options::default().with_recursion_limit(16);
        let raw: RawSources = options.from_str(text).map_err(|error| {
            let start = error.span.start;
            wrong(format!("{}:{}: {}", start.line, start.col, error.code))
        })?;
        if raw.revision != REVISION {
            return Err(wrong(format!(
                "revision `{}`, expected `{REVISION}`",
                raw.revision
            )));
        }
        let mut aliases = BTreeMap::new();
        for (alias, name) in raw.aliases {
            let name: ModelName = name.parse()?;
            if alias.contains(['/', ':']) || alias.is_empty() || name.host().is_none() {
                return Err(wrong(format!(
                    "alias `{alias}` for `{name}`: expected a word for a name with a registry"
                )));
            }
            aliases.insert(alias, name);
        }
        Ok(Self {
            aliases,
            mirrors: raw.mirrors,
        })
    }

    /// The name that an alias stands for.
    pub fn alias(&self, text: &str) -> Option<&ModelName> {
        self.aliases.get(text)
    }

    /// The places that are asked for a name: its mirrors in order, then its registry.
    ///
    /// Errors: [`ShipError::Name`] for a name without a registry or a mirror that makes none, [`ShipError::Address`].
    pub fn of(
        &self,
        name: &ModelName,
        credentials: &Credentials,
        plain_http: &[String],
    ) -> Result<Replicas, ShipError> {
        let signed_name = name.signed_name();
        let mut places: Vec<Box<dyn BundleSource>> = Vec::new();
        for mirror in &self.mirrors {
            let Some(rest) = signed_name.strip_prefix(&mirror.prefix) else {
                continue;
            };
            for at in &mirror.at {
                let place = format!("{at}{rest}");
                let logins = credentials.clone();
                places.push(match at.contains("://") {
                    true => Box::new(WebLayout::new(&place, logins, plain_http)?),
                    false => {
                        let copy: ModelName = format!("{place}:{}", name.tag()).parse()?;
                        Box::new(Registry::new(&copy, logins, plain_http)?)
                    }
                });
            }
        }
        places.push(Box::new(Registry::new(
            name,
            credentials.clone(),
            plain_http,
        )?));
        Ok(Replicas(places))
    }
}

/// Places with copies of one repository. What one of them does not give is asked of the next.
pub struct Replicas(Vec<Box<dyn BundleSource>>);

impl Replicas {
    /// The first answer of the places, counted round from `first` on. Without any, the error of the last place, which is
    /// the registry's own.
    fn answer<'p, T>(
        &'p self,
        first: usize,
        ask: impl Fn(&'p dyn BundleSource) -> Result<T, ShipError>,
    ) -> Result<T, ShipError> {
        let count = self.0.len();
        let start = first.checked_rem(count).unwrap_or(0);
        let mut refused = ShipError::Missing {
            what: "place".to_owned(),
            place: "the list of sources".to_owned(),
        };
        for (place, number) in self.0.iter().zip(1..).cycle().skip(start).take(count) {
            match ask(&**place) {
                Ok(answer) => return Ok(answer),
                Err(error) if number == count => refused = error,
                Err(_) => {}
            }
        }
        Err(refused)
    }
}

impl BundleSource for Replicas {
    fn place(&self) -> String {
        let places: Vec<String> = self.0.iter().map(|place| place.place()).collect();
        places.join(", ")
    }

    fn tagged(&self, tag: &str) -> Result<Vec<u8>, ShipError> {
        self.answer(0, |place| place.tagged(tag))
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>, ShipError> {
        self.answer(0, |place| {
            let bytes = place.manifest(digest)?;
            digest.check("the manifest", &bytes, &place.place())?;
            Ok(bytes)
        })
    }

    fn blob(
        &self,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        self.blob_from(0, digest, range, deadline)
    }

    fn places(&self) -> usize {
        self.0.len()
    }

    fn blob_from(
        &self,
        first: usize,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        self.answer(first, |place| place.blob(digest, range.clone(), deadline))
    }
}

const REVISION: u32 = 1;
