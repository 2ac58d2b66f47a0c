//! Reads untrusted JSON under bounds that hold while it is read: on the number of values of a body, and on the tokens and
//! bytes of a prompt.
//!
//! `serde_json` would build a whole tree first: a list of four million numbers is 8 MB as text and 300 MB as values.
//! Here a list of token ids is read as ids, up to the first one that is too many, and ignored fields are skipped
//! without building values.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::error::{ApiError, Result};
use super::fields::describe;
use super::request::{PromptBounds, PromptText};

/// Reads a body within bounds.
pub(super) struct Reader<'a> {
    bounds: &'a PromptBounds,
    /// Ignored fields, whose values are read as `true` whatever they are.
    passed_over: &'a [&'a str],
    values_left: Cell<usize>,
    /// The reason for giving up. An error of `serde` could only carry it as text.
    refusal: RefCell<Option<ApiError>>,
}

/// Whether the field `prompt` is read as a prompt, or as an unknown field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptField {
    Typed,
    Unknown,
}

/// An object's fields, and its typed prompt.
pub(super) type Read = (Map<String, Value>, Option<PromptText>);

impl<'a> Reader<'a> {
    pub(super) fn new(bounds: &'a PromptBounds, passed_over: &'a [&'a str]) -> Self {
        Self {
            bounds,
            passed_over,
            values_left: Cell::new(VALUES_MAX),
            refusal: RefCell::new(None),
        }
    }

    /// Reads an object. `serde_json` refuses more than 128 nested values.
    pub(super) fn object(&self, body: &[u8], prompt: PromptField) -> Result<Read> {
        let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
        if let Some(found) = first.and_then(|byte| not_an_object(*byte)) {
            serde_json::from_slice::<IgnoredAny>(body).map_err(ApiError::Json)?;
            return Err(ApiError::NotAnObject { found });
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        let object = Object {
            reader: self,
            prompt,
        };
        let read = object
            .deserialize(&mut json)
            .and_then(|read| json.end().map(|()| read));
        read.map_err(|error| self.refusal.take().unwrap_or(ApiError::Json(error)))
    }

    /// Stops reading, with this error.
    fn refuse<E: de::Error>(&self, why: ApiError) -> E {
        *self.refusal.borrow_mut() = Some(why);
        E::custom("refused")
    }

    fn count_value<E: de::Error>(&self) -> Result<(), E> {
        let left = self.values_left.get().checked_sub(1);
        let left = left.ok_or_else(|| {
            self.refuse(ApiError::TooManyValues {
                values_max: VALUES_MAX,
            })
        })?;
        self.values_left.set(left);
        Ok(())
    }
}

/// Returns the kind of a value by its first byte; `None` for an object and for text that is not JSON.
fn not_an_object(first: u8) -> Option<String> {
    let found = match first {
        b'[' => "a list",
        b'"' => "a text",
        b't' | b'f' => "true or false",
        b'n' => "null",
        b'-' | b'0'..=b'9' => "a number",
        _ => return None,
    };
    Some(found.to_owned())
}

/// The body itself.
struct Object<'a> {
    reader: &'a Reader<'a>,
    prompt: PromptField,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Read;

    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> Result<Read, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Read, A::Error> {
        let Self { reader, prompt } = self;
        let (mut fields, mut typed) = (Map::new(), None);
        while let Some(name) = object.next_key::<Cow<'de, str>>()? {
            reader.count_value()?;
            if prompt == PromptField::Typed && name == "prompt" {
                typed = object.next_value_seed(Prompt(reader))?;
                continue;
            }
            let value = match reader.passed_over.contains(&name.as_ref()) {
                true => object.next_value::<IgnoredAny>().map(|_| Value::Bool(true)),
                false => object.next_value_seed(Counted(reader)),
            };
            fields.insert(name.into_owned(), value?);
        }
        Ok((fields, typed))
    }
}

/// A seed for any value; it counts each part of the value.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Reader<'a>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        self.0.count_value()?;
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            self.0.count_value()?;
            map.insert(name, object.next_value_seed(self)?);
        }
        Ok(Value::Object(map))
    }
}

/// A prompt: a text, a list of token ids, or a list of one of these.
struct Prompt<'a>(&'a Reader<'a>);

/// An entry of a prompt's list.
enum Item {
    /// A whole prompt: a text or a list.
    Prompt(PromptText),
    /// Anything else: a token id in a valid request.
    Value(Value),
}

/// An item of a prompt's list.
struct ItemSeed<'a>(&'a Reader<'a>);

impl Reader<'_> {
    fn prompt_text<E: de::Error>(&self, text: &str) -> Result<PromptText, E> {
        let fits = self.bounds.check_text(text.len());
        fits.map_err(|error| self.refuse(error))?;
        Ok(PromptText::Text(text.to_owned()))
    }

    /// Appends ids to `ids`, up to the first one that is too many.
    fn token_ids<'de, A: SeqAccess<'de>>(
        &self,
        mut ids: Vec<u32>,
        mut list: A,
    ) -> Result<PromptText, A::Error> {
        while let Some(value) = list.next_element_seed(Counted(self))? {
            ids.push(self.token_id(ids.len(), &value)?);
            let fits = self.bounds.check_tokens(ids.len());
            fits.map_err(|error| self.refuse(error))?;
        }
        Ok(PromptText::Tokens(ids))
    }

    fn token_id<E: de::Error>(&self, place: usize, value: &Value) -> Result<u32, E> {
        // Token ids are bounded by the context, not by the limit on other values.
        self.values_left.set(self.values_left.get() + 1);
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            self.refuse(ApiError::Field {
                field: format!("prompt[{place}]"),
                expected: "a token id",
                found: describe(value),
            })
        })
    }

    fn no_prompt<E: de::Error>(&self, found: String) -> E {
        self.refuse(ApiError::Field {
            field: "prompt".to_owned(),
            expected: "a text, a list of token ids, or a list of one of these",
            found,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Prompt<'_> {
    type Value = Option<PromptText>;

    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Prompt<'_> {
    type Value = Option<PromptText>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Err(self.0.no_prompt(describe(&value.into())))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Err(self.0.no_prompt(describe(&value.into())))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Err(self.0.no_prompt(describe(&value.into())))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        Err(self.0.no_prompt(describe(&value.into())))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(self.0.no_prompt("an object".to_owned()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        self.0.prompt_text(text).map(Some)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let reader = self.0;
        let only = match list.next_element_seed(ItemSeed(reader))? {
            None => return Ok(Some(PromptText::Tokens(Vec::new()))),
            Some(Item::Prompt(only)) => only,
            Some(Item::Value(value)) => {
                let first = reader.token_id(0, &value)?;
                return reader.token_ids(vec![first], list).map(Some);
            }
        };
        if list.next_element::<IgnoredAny>()?.is_some() {
            return Err(reader.refuse(ApiError::Unsupported {
                field: "prompt".to_owned(),
                found: "a list of several prompts".to_owned(),
                limit: "answers one prompt a request",
            }));
        }
        Ok(Some(only))
    }
}

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = Item;

    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> Result<Item, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemSeed<'_> {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a prompt or a token id")
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item::Value(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Item, E> {
        Ok(Item::Value(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Item, E> {
        Ok(Item::Value(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Item, E> {
        Ok(Item::Value(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Item, E> {
        Ok(Item::Value(value.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Item, A::Error> {
        Counted(self.0).visit_map(object).map(Item::Value)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Item, E> {
        self.0.prompt_text(text).map(Item::Prompt)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Item, A::Error> {
        self.0.token_ids(Vec::new(), list).map(Item::Prompt)
    }
}

/// Maximum number of values of a body, field names included and token ids not. Chosen: more than twice that of the
/// largest schema. A value takes some 100 bytes.
const VALUES_MAX: usize = 50_000;
