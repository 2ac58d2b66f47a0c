//! The places that a machine asks for a name: aliases for people, and mirrors before a registry.
//!
//! A mirror is trusted with nothing but availability: whatever comes from it is hashed, and signed by whom the name's
//! policy says.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
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
        let mut places: Vec<Place> = Vec::new();
        for mirror in &self.mirrors {
            let Some(rest) = signed_name.strip_prefix(&mirror.prefix) else {
                continue;
            };
            for at in &mirror.at {
                let place = format!("{at}{rest}");
                let logins = credentials.clone();
                places.push(match at.contains("://") {
                    true => Place::new(WebLayout::new(&place, logins, plain_http)?),
                    false => {
                        let copy: ModelName = format!("{place}:{}", name.tag()).parse()?;
                        Place::new(Registry::new(&copy, logins, plain_http)?)
                    }
                });
            }
        }
        let own = Registry::new(name, credentials.clone(), plain_http)?;
        places.push(Place::new(own));
        Ok(Replicas(places))
    }
}

/// Places with copies of one repository. What one of them does not give is asked of the next. A place that cannot be
/// reached is asked no more, unless none of the others has an answer: each try to reach it may take seconds.
pub struct Replicas(Vec<Place>);

/// One of the places.
struct Place {
    source: Box<dyn BundleSource>,
    /// Whether it could not be reached.
    is_down: AtomicBool,
}

impl Place {
    fn new(source: impl BundleSource + 'static) -> Self {
        Self {
            source: Box::new(source),
            is_down: AtomicBool::new(false),
        }
    }
}

impl Replicas {
    /// The first answer of the places, counted round from `first` on; those that are down come last. Without any, the
    /// error of the last place of the list, which is the registry's own.
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
        let in_turn = self.0.iter().zip(1..).cycle().skip(start).take(count);
        let (down, up): (Vec<_>, Vec<_>) =
            in_turn.partition(|(place, _)| place.is_down.load(Ordering::Relaxed));
        for (place, number) in up.into_iter().chain(down) {
            let answer = ask(&*place.source);
            let is_down = answer.as_ref().is_err_and(ShipError::is_unreachable);
            place.is_down.store(is_down, Ordering::Relaxed);
            match answer {
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
        let places: Vec<String> = self.0.iter().map(|place| place.source.place()).collect();
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A place that gives documents if it can be reached, and counts who asks.
    struct Counted {
        asked: Arc<AtomicUsize>,
        reached: Arc<AtomicBool>,
    }

    impl BundleSource for Counted {
        fn place(&self) -> String {
            "counted".to_owned()
        }

        fn tagged(&self, _tag: &str) -> Result<Vec<u8>, ShipError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            match self.reached.load(Ordering::Relaxed) {
                true => Ok(Vec::new()),
                false => Err(ShipError::NoAnswer {
                    url: "http://counted/".to_owned(),
                    source: Box::new(ureq::Error::Timeout(ureq::Timeout::Connect)),
                }),
            }
        }

        fn manifest(&self, _digest: &Digest) -> Result<Vec<u8>, ShipError> {
            self.tagged("")
        }

        fn blob(
            &self,
            _digest: &Digest,
            _range: Range<u64>,
            _deadline: Duration,
        ) -> Result<Box<dyn Read + '_>, ShipError> {
            self.tagged("").map(|_| Box::new(std::io::empty()) as _)
        }
    }

    #[test]
    fn a_place_that_is_down_is_asked_once_and_again_where_no_other_answers() {
        let counted: [(Arc<AtomicUsize>, Arc<AtomicBool>); 2] = Default::default();
        let places = counted.each_ref().map(|(asked, reached)| {
            Place::new(Counted {
                asked: Arc::clone(asked),
                reached: Arc::clone(reached),
            })
        });
        let places = Replicas(places.into());
        let asked = || {
            counted
                .each_ref()
                .map(|(asked, _)| asked.swap(0, Ordering::Relaxed))
        };
        let [(_, mirror), (_, registry)] = &counted;
        registry.store(true, Ordering::Relaxed);
        for _ in 0..5 {
            places.tagged("v1").unwrap();
        }
        assert_eq!(asked(), [1, 5]);
        registry.store(false, Ordering::Relaxed);
        places.tagged("v1").unwrap_err();
        assert_eq!(asked(), [1, 1]);
        // Both are down: the first that can be reached again counts.
        mirror.store(true, Ordering::Relaxed);
        places.tagged("v1").unwrap();
        places.tagged("v1").unwrap();
        assert_eq!(asked(), [2, 0]);
    }
}
