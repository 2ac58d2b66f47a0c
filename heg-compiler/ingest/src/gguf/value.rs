//! The values of the metadata: whole numbers, floats, bools, texts and arrays of them.

#![deny(clippy::arithmetic_side_effects)]

/// A value, in the widest type of its kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Whole(i128),
    Float(f64),
    Boolean(bool),
    Text(&'a [u8]),
    Array(Array<'a>),
}

/// An array of one type; `bytes` are exactly its `count` elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Array<'a> {
    pub(super) kind: Kind,
    pub(super) count: usize,
    pub(super) bytes: &'a [u8],
}

impl Value<'_> {
    /// Formats the value for a message, always short.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Whole(number) => format!("`{number}`"),
            Self::Float(number) => format!("`{number:?}`"),
            Self::Boolean(truth) => format!("`{truth}`"),
            Self::Text(bytes) => {
                let shown = bytes.get(..TEXT_SHOWN).unwrap_or(bytes);
                format!("{:?}", String::from_utf8_lossy(shown))
            }
            Self::Array(array) => format!("an array of {} {}", array.count, array.kind.shown()),
        }
    }
}

impl Array<'_> {
    pub(super) fn whole_numbers(&self) -> Option<Vec<i32>> {
        let width = self.kind.bytes()?;
        let numbers = self.bytes.chunks_exact(width);
        numbers
            .map(|bytes| match self.kind.number(bytes)? {
                Value::Whole(number) => i32::try_from(number).ok(),
                Value::Boolean(truth) => Some(i32::from(truth)),
                _ => None,
            })
            .collect()
    }
}

/// The texts of an array, in order.
#[derive(Debug, Clone)]
pub(crate) struct Strings<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.bytes.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (text, rest) = rest.split_at_checked(length)?;
        self.bytes = rest;
        self.left = self.left.saturating_sub(1);
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// The type of a value (format).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Boolean,
    Text,
    Array,
    U64,
    I64,
    F64,
}

/// The types in the order of their numbers (format).
pub(super) const KINDS: [Kind; 13] = [
    Kind::U8,
    Kind::I8,
    Kind::U16,
    Kind::I16,
    Kind::U32,
    Kind::I32,
    Kind::F32,
    Kind::Boolean,
    Kind::Text,
    Kind::Array,
    Kind::U64,
    Kind::I64,
    Kind::F64,
];

impl Kind {
    /// Number of bytes of a value, if all values of the type have the same.
    pub(super) fn bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Boolean => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text | Self::Array => None,
        }
    }

    /// Decodes a number or bool from exactly its bytes; `None` for an invalid bool.
    pub(super) fn number(self, bytes: &[u8]) -> Option<Value<'static>> {
        let unsigned = || {
            let mut wide = [0; 8];
            wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(u64::from_le_bytes(wide))
        };
        let whole = |number: i64| Some(Value::Whole(i128::from(number)));
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => {
                Some(Value::Whole(i128::from(unsigned()?)))
            }
            Self::I8 => whole(i64::from(i8::from_le_bytes(bytes.try_into().ok()?))),
            Self::I16 => whole(i64::from(i16::from_le_bytes(bytes.try_into().ok()?))),
            Self::I32 => whole(i64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
            Self::I64 => whole(i64::from_le_bytes(bytes.try_into().ok()?)),
            Self::F32 => {
                let number = f32::from_le_bytes(bytes.try_into().ok()?);
                Some(Value::Float(f64::from(number)))
            }
            Self::F64 => Some(Value::Float(f64::from_le_bytes(bytes.try_into().ok()?))),
            Self::Boolean => match bytes {
                [0] => Some(Value::Boolean(false)),
                [1] => Some(Value::Boolean(true)),
                _ => None,
            },
            Self::Text | Self::Array => None,
        }
    }

    fn shown(self) -> &'static str {
        match self {
            Self::U8 | Self::I8 | Self::U16 | Self::I16 | Self::U32 => "whole numbers",
            Self::I32 | Self::U64 | Self::I64 => "whole numbers",
            Self::F32 | Self::F64 => "numbers",
            Self::Boolean => "truth values",
            Self::Text => "texts",
            Self::Array => "arrays",
        }
    }
}

/// Bytes of a text shown in a message.
const TEXT_SHOWN: usize = 60;
