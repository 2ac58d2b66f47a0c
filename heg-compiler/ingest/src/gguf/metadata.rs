//! The header and the metadata of a GGUF file: named values, read in place.
//!
//! The format, all numbers little-endian: `GGUF` · u32 version · u64 tensors · u64 keys · keys · tensors · padding ·
//! data. A key is a string (u64 length · bytes), a u32 type and a value; an array is a u32 type, a u64 count and its
//! elements. Nothing is copied: texts and arrays stay in the file, and are walked once here, so that every length is
//! known to be inside the file.

#![deny(clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::error::IngestError;
use super::mistake::GgufMistake;
use super::reader::Reader;
use super::value::{Kind, Strings, Value};

/// The metadata of a file.
#[derive(Debug, Clone)]
pub(crate) struct Metadata<'a> {
    path: PathBuf,
    entries: BTreeMap<&'a str, Value<'a>>,
    /// Number of tensors in the header.
    pub(super) tensor_count: u64,
    /// Offset of the tensors' descriptions in the file.
    pub(super) tensors_start: usize,
}

impl<'a> Metadata<'a> {
    /// Reads the header and the metadata of a whole file's bytes, which may be a map. `path` is for messages.
    pub(crate) fn read(path: &Path, file: &'a [u8]) -> Result<Self, IngestError> {
        let mut reader = Reader::new(path, file);
        if !file.starts_with(MAGIC) {
            return Err(reader.error(GgufMistake::Magic));
        }
        reader.take("the header", MAGIC.len() as u64)?;
        let version = reader.u32("the header")?;
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 1..=3) => {
                return Err(reader.error(GgufMistake::BigEndian));
            }
            found => return Err(reader.error(GgufMistake::Version { found })),
        }
        let tensor_count = reader.u64("the header")?;
        let key_count = reader.u64("the header")?;
        reader.room(key_count, KEY_BYTES_MIN, "keys")?;
        reader.limit(key_count, KEYS_MAX, "keys")?;
        let mut entries = BTreeMap::new();
        for _ in 0..key_count {
            let start = reader.at;
            let key = reader.name("a key", KEY_NAME_BYTES_MAX)?;
            let value = reader.value(key)?;
            if entries.insert(key, value).is_some() {
                let key = key.to_owned();
                return Err(reader.error_at(start, GgufMistake::KeyTwice { key }));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            entries,
            tensor_count,
            tensors_start: reader.at,
        })
    }

    /// The file, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All keys, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.entries.keys().copied()
    }

    /// A text; `None` if absent, an error if the value has another type or is not UTF-8.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, IngestError> {
        let expected = "a text in UTF-8";
        self.read_as(key, expected, |value| match value {
            Value::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// A non-negative whole number.
    pub(crate) fn u64(&self, key: &str) -> Result<Option<u64>, IngestError> {
        let expected = "a whole number that is not negative";
        self.read_as(key, expected, |value| match value {
            Value::Whole(number) => u64::try_from(number).ok(),
            _ => None,
        })
    }

    /// As [`Metadata::u64`], but of at most 32 bits.
    pub(crate) fn u32(&self, key: &str) -> Result<Option<u32>, IngestError> {
        let expected = "a whole number of at most 32 bits that is not negative";
        self.read_as(key, expected, |value| match value {
            Value::Whole(number) => u32::try_from(number).ok(),
            _ => None,
        })
    }

    /// A finite floating-point number.
    pub(crate) fn f32(&self, key: &str) -> Result<Option<f32>, IngestError> {
        self.read_as(key, "a finite number", |value| match value {
            Value::Float(number) => Some(number as f32).filter(|number| number.is_finite()),
            _ => None,
        })
    }

    /// A bool.
    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>, IngestError> {
        self.read_as(key, "true or false", |value| match value {
            Value::Boolean(truth) => Some(truth),
            _ => None,
        })
    }

    /// An array of texts, as bytes: the vocabularies of some models are not always UTF-8.
    pub(crate) fn strings(&self, key: &str) -> Result<Option<Strings<'a>>, IngestError> {
        self.read_as(key, "an array of texts", |value| match value {
            Value::Array(array) if array.kind == Kind::Text => Some(Strings {
                bytes: array.bytes,
                left: array.count,
            }),
            _ => None,
        })
    }

    /// An array of finite f32 numbers.
    pub(crate) fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, IngestError> {
        self.read_as(key, "an array of finite f32 numbers", |value| match value {
            Value::Array(array) if array.kind == Kind::F32 => {
                let (numbers, _) = array.bytes.as_chunks();
                let numbers = numbers.iter().map(|number| f32::from_le_bytes(*number));
                let numbers: Vec<f32> = numbers.collect();
                numbers
                    .iter()
                    .all(|number| number.is_finite())
                    .then_some(numbers)
            }
            _ => None,
        })
    }

    /// An array of whole numbers or bools (as 0 and 1) that fit an i32.
    pub(crate) fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, IngestError> {
        let expected = "an array of whole numbers of at most 32 bits";
        self.read_as(key, expected, |value| match value {
            Value::Array(array) => array.whole_numbers(),
            _ => None,
        })
    }

    /// `value`, or the error for an absent `key`.
    pub(crate) fn needed<T>(
        &self,
        key: &str,
        value: Option<T>,
        expected: &'static str,
    ) -> Result<T, IngestError> {
        value.ok_or_else(|| self.wrong(key, expected))
    }

    /// The error for a key that is absent or has a wrong value.
    pub(crate) fn wrong(&self, key: &str, expected: &'static str) -> IngestError {
        IngestError::ConfigValue {
            path: self.path.clone(),
            key: key.to_owned(),
            found: self
                .entries
                .get(key)
                .map_or_else(|| "nothing".into(), Value::shown),
            expected,
        }
    }

    fn read_as<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, IngestError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(value) => read(*value)
                .map(Some)
                .ok_or_else(|| self.wrong(key, expected)),
        }
    }
}

/// The first bytes of a file (format).
pub(crate) const MAGIC: &[u8] = b"GGUF";

/// Smallest size of a key: an empty name, a type, a value of one byte (format).
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;

/// Largest number of keys. Chosen: published files have about fifty.
const KEYS_MAX: u64 = 1 << 16;

/// Longest name of a key (format).
const KEY_NAME_BYTES_MAX: u64 = u16::MAX as u64;
