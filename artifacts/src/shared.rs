//! A place that machines share behind the folders of their stores, with the same objects and recipes under the same names.
//!
//! A store looks there for a recipe that its folder lacks, fetches what the recipe names, and sends what it records. Nothing
//! fetched is believed: an object proves itself by its name, a recipe by its seal.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::error::Error;
use crate::manifest::Section;
use crate::sink::SectionSink;

/// A place where machines share what they made: files by name, such as a bucket.
///
/// Names are those of a store's folder, e.g. `blake3/ab/abcdef…`. A file appears whole or not at all.
pub trait SharedPlace: fmt::Debug + Send + Sync {
    /// The place for people, such as a URL.
    fn label(&self) -> &str;

    /// Length of a file in bytes; `None` if there is none of that name.
    ///
    /// Errors: those of the place.
    fn length(&self, name: &str) -> io::Result<Option<u64>>;

    /// Writes the first `bytes` bytes of a file to `to`.
    ///
    /// Errors: those of the place and of `to`; of the kind [`ErrorKind::NotFound`] if there is no such file.
    fn fetch(&self, name: &str, bytes: u64, to: &mut dyn Write) -> io::Result<()>;

    /// Copies the file at `from` there, in place of one of that name.
    ///
    /// Errors: those of the place, and of reading the file.
    fn send(&self, name: &str, from: &Path) -> io::Result<()>;

    /// Removes a file, which need not exist.
    ///
    /// Errors: those of the place.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// The text of a recipe, if the place has one that is no longer than any.
pub(crate) fn recipe(place: &dyn SharedPlace, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let mut text = Vec::new();
    let is_there = fetch_if(place, name, |bytes| bytes <= RECIPE_BYTES_MAX, &mut text)?;
    Ok(is_there.then_some(text))
}

/// Writes a section to `to`; false if the place has none of that name and length.
pub(crate) fn fetch(
    place: &dyn SharedPlace,
    name: &str,
    section: Section,
    to: &mut SectionSink,
) -> Result<bool, Error> {
    fetch_if(place, name, |bytes| bytes == section.bytes, to)
}

/// Writes a file to `to`; false if the place has none of that name with a length that fits.
fn fetch_if(
    place: &dyn SharedPlace,
    name: &str,
    fits: impl Fn(u64) -> bool,
    to: &mut dyn Write,
) -> Result<bool, Error> {
    let failed = failure(place, "fetch", name);
    let Some(bytes) = place.length(name).map_err(&failed)?.filter(|it| fits(*it)) else {
        return Ok(false);
    };
    match place.fetch(name, bytes, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Sends a file, unless one of that name and length is there.
pub(crate) fn send_once(
    place: &dyn SharedPlace,
    name: &str,
    from: &Path,
    bytes: u64,
) -> Result<(), Error> {
    let failed = failure(place, "send", name);
    match place.length(name).map_err(&failed)? {
        Some(length) if length == bytes => Ok(()),
        _ => place.send(name, from).map_err(failed),
    }
}

/// Sends a file in place of what is there.
pub(crate) fn send(place: &dyn SharedPlace, name: &str, from: &Path) -> Result<(), Error> {
    place.send(name, from).map_err(failure(place, "send", name))
}

/// Removes a file.
pub(crate) fn remove(place: &dyn SharedPlace, name: &str) -> Result<(), Error> {
    place.remove(name).map_err(failure(place, "remove", name))
}

fn failure(
    place: &dyn SharedPlace,
    action: &'static str,
    name: &str,
) -> impl Fn(io::Error) -> Error {
    let (place, name) = (place.label().to_owned(), name.to_owned());
    move |source| Error::SharedPlace {
        action,
        name: name.clone(),
        place: place.clone(),
        source,
    }
}

/// Longest recipe that is fetched. Chosen: ten thousand sections.
const RECIPE_BYTES_MAX: u64 = 1 << 20;
