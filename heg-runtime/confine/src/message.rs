//! Messages between the server and the worker, as CBOR, so that numbers of a request arrive bit by bit.

use heg_text::{Conversation, TextError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A text to encode.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum TextToEncode {
    /// A conversation to render by the template, and the maximum size of the rendered text in bytes.
    Chat(Conversation, usize),
    /// A bare text, to which the tokenizer adds its special tokens.
    Bare(String),
    /// A text in which special tokens are written out.
    AsWritten(String),
    /// Two texts, which the tokenizer joins. The number of tokens that belong to the first stands before the tokens.
    Pair(String, String),
}

impl TextToEncode {
    /// About the size of the text, in bytes; of a conversation, the least.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Chat(conversation, _) => conversation.messages.len(),
            Self::Bare(text) | Self::AsWritten(text) => text.len(),
            Self::Pair(first, second) => first.len().saturating_add(second.len()),
        }
    }
}

/// A piece of work for a process that makes prompts.
#[derive(Debug)]
pub(crate) struct PromptWork {
    /// The texts, which are encoded one behind the other.
    pub(crate) texts: Vec<TextToEncode>,
    /// Memory that the work may take, in bytes.
    pub(crate) heap_bytes: u64,
    /// Processor time that the work may take, in seconds.
    pub(crate) seconds: u64,
    /// Maximum number of tokens that are sent back for each text.
    pub(crate) tokens_max: u64,
}

impl PromptWork {
    /// Serialises the work on texts, with bounds on memory and time that depend on their size.
    pub(crate) fn to_bytes(
        texts: &[TextToEncode],
        tokens_max: u64,
        bounds: impl Fn(u64) -> (u64, u64),
    ) -> Vec<u8> {
        let texts = to_bytes(&texts);
        let (heap_bytes, seconds) = bounds(texts.len() as u64);
        let numbers = [heap_bytes, seconds, tokens_max];
        let mut bytes = numbers.map(u64::to_le_bytes).concat();
        bytes.extend(texts);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (heap_bytes, rest) = bytes.split_first_chunk()?;
        let (seconds, rest) = rest.split_first_chunk()?;
        let (tokens_max, texts) = rest.split_first_chunk()?;
        Some(Self {
            texts: from_bytes(texts)?,
            heap_bytes: u64::from_le_bytes(*heap_bytes),
            seconds: u64::from_le_bytes(*seconds),
            tokens_max: u64::from_le_bytes(*tokens_max),
        })
    }
}

/// The outcome of compiling a form.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Compiled {
    /// The form takes this many bytes of private memory.
    Done(u64),
    Refused(Refusal),
}

/// An error of `heg-text` that work in the worker can have.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Tokenizer(String),
    Template(String, Option<usize>),
    TooLong(usize),
    Exception(String),
    Form(String, String),
    Other(String),
}

impl From<TextError> for Refusal {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Tokenizer { message } => Self::Tokenizer(message),
            TextError::Template { message, line } => Self::Template(message, line),
            TextError::TooLong { bytes_max } => Self::TooLong(bytes_max),
            TextError::Refused { message } => Self::Exception(message),
            TextError::Form { form, message } => Self::Form(form.to_owned(), message),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<Refusal> for TextError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Tokenizer(message) | Refusal::Other(message) => Self::Tokenizer { message },
            Refusal::Template(message, line) => Self::Template { message, line },
            Refusal::TooLong(bytes_max) => Self::TooLong { bytes_max },
            Refusal::Exception(message) => Self::Refused { message },
            Refusal::Form(form, message) => Self::Form {
                form: known_form(&form),
                message,
            },
        }
    }
}

/// Returns the program's own static copy of a form's name.
fn known_form(name: &str) -> &'static str {
    let known = FORMS.iter().find(|known| **known == name);
    known.copied().unwrap_or("form")
}

const FORMS: [&str; 4] = ["JSON schema", "regular expression", "tools", "vocabulary"];

/// Serialises a message.
pub(crate) fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to a vector cannot fail, and the keys of messages can be written.
    let _ = ciborium::into_writer(message, &mut bytes);
    bytes
}

/// Parses a message; `None` if the bytes are not one.
pub(crate) fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    ciborium::from_reader(bytes).ok()
}

#[cfg(test)]
mod tests {
    use heg_text::{AnswerForm, Message};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Any JSON value: a schema, or a template's variable.
    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>()
                .prop_filter("JSON has no others", |number| number.is_finite())
                .prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("[a-z]{0,4}", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// They are compared as text, so that the order of fields and the kind of numbers count.
        #[test]
        fn values_arrive_as_they_were_sent(value in any_value()) {
            let form = AnswerForm::JsonSchema(value.clone());
            let arrived: Option<AnswerForm> = from_bytes(&to_bytes(&form));
            let Some(AnswerForm::JsonSchema(arrived)) = arrived else { panic!("no schema") };
            prop_assert_eq!(arrived.to_string(), value.to_string());
        }

        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = from_bytes::<AnswerForm>(&bytes);
            let _ = PromptWork::from_bytes(&bytes);
            let _ = from_bytes::<Compiled>(&bytes);
        }
    }

    #[test]
    fn conversations_keep_their_fields() {
        let conversation = Conversation {
            messages: vec![Message::new("user", "hi")],
            tools: vec![json!({"type": "function"})],
            add_generation_prompt: true,
            now: Some(heg_text::DateTime::from_unix_seconds(1_721_952_000)),
            variables: [("deep".to_owned(), json!(0.1))].into_iter().collect(),
        };
        let text = TextToEncode::Chat(conversation.clone(), 7);
        let bytes = PromptWork::to_bytes(&[text], 9, |size| (size + 1, 3));
        let size = bytes.len() as u64 - 24;
        let work = PromptWork::from_bytes(&bytes).unwrap();
        assert_eq!(
            (work.tokens_max, work.heap_bytes, work.seconds),
            (9, size + 1, 3)
        );
        let [TextToEncode::Chat(arrived, 7)] = work.texts.as_slice() else {
            panic!("no conversation")
        };
        assert_eq!(format!("{arrived:?}"), format!("{conversation:?}"));
    }
}
