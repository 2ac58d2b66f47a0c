//! Renders a conversation to the text of a prompt, by the model's own chat template.
//!
//! Templates are written for Jinja2 as `transformers` configures it: `trim_blocks`, `lstrip_blocks`, Python's string
//! methods, its `tojson`, `raise_exception`, `strftime_now`, loop controls, and undefined values that print as nothing
//! but have no attributes. Messages are untrusted, so the length of the rendered text and the engine's steps are
//! bounded. The template itself comes with a model and may be broken, so it gets no files and no clock. Its
//! intermediate values are not bounded here, for the engine has no hook there: twenty-eight times `x = x ~ x` take 256
//! MB and a second. Callers who do not trust a model's template therefore run it in a process that can be killed
//! (`heg-confine`).

use std::collections::BTreeMap;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

use super::error::shortened;
use super::{DateTime, Result, TextError, python};

/// A parsed chat template. It can be shared between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: BTreeMap<String, String>,
}

/// The input of a chat template.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The tools in the template's format (mostly OpenAI's). An empty list is `none` in the template.
    pub tools: Vec<serde_json::Value>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// The date that `strftime_now` returns. With `None` the function is undefined, and templates use their own date.
    pub now: Option<DateTime>,
    /// Further variables (`enable_thinking`, `documents`); they cannot shadow the fields above.
    pub variables: serde_json::Map<String, serde_json::Value>,
}

/// A message: a JSON object with a `role`, passed to the template unchanged.
///
/// Fields keep the order of the request, which some templates print.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct Message(serde_json::Map<String, serde_json::Value>);

impl ChatTemplate {
    /// Parses a template. `special_tokens` become variables, such as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// `Template`, with the line, if the template does not parse.
    pub fn new(source: &str, special_tokens: BTreeMap<String, String>) -> Result<Self> {
        let mut environment = environment().map_err(|error| failure(&error))?;
        let source = without_generation_tags(source);
        guarded(|| environment.add_template_owned(NAME, source))?;
        Ok(Self {
            environment,
            special_tokens,
        })
    }

    /// Returns the source of the template.
    pub(super) fn source(&self) -> String {
        let template = self.environment.get_template(NAME);
        template.map_or_else(|_| String::new(), |template| template.source().to_owned())
    }

    /// Returns whether the template reads a variable, or a field of messages, of this name, so that its value may change
    /// a prompt.
    pub fn reads(&self, name: &str) -> bool {
        let read = guarded(|| {
            let template = self.environment.get_template(NAME)?;
            Ok(template.undeclared_variables(false).contains(name))
        });
        // A template that cannot be read again gives no prompt either.
        read.unwrap_or(false) || has_field(&self.source(), name)
    }

    /// Renders the text of the prompt, special tokens written out: encode it with `Special::AsWritten`.
    ///
    /// # Errors
    /// `Refused` if the template raises an exception, `Template` if it fails or runs too long.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        self.render_within(conversation, usize::MAX)
    }

    /// Renders the text of the prompt as [`render_within`](Self::render_within) does. A template that refuses the
    /// conversation gets it [in turns](Conversation::in_turns).
    ///
    /// # Errors
    /// Those of [`render_within`](Self::render_within), about the conversation as it is.
    pub fn render_or_in_turns(
        &self,
        conversation: &Conversation,
        bytes_max: usize,
    ) -> Result<String> {
        let refused = match self.render_within(conversation, bytes_max) {
            Err(refused @ TextError::Refused { .. }) => refused,
            rendered => return rendered,
        };
        match conversation.in_turns() {
            Some(turns) => self.render_within(&turns, bytes_max).or(Err(refused)),
            None => Err(refused),
        }
    }

    /// Renders the text of the prompt if it has at most `bytes_max` bytes: rendering ends at the first byte beyond
    /// that.
    ///
    /// # Errors
    /// `TooLong`, and those of [`render`](Self::render).
    pub fn render_within(&self, conversation: &Conversation, bytes_max: usize) -> Result<String> {
        let variables = self.variables(conversation);
        let mut text = BoundedText {
            bytes: Vec::new(),
            bytes_max,
            is_full: false,
        };
        let rendered = guarded(|| {
            let template = self.environment.get_template(NAME)?;
            template.render_captured_to(variables, &mut text)?;
            Ok(())
        });
        if text.is_full {
            return Err(TextError::TooLong { bytes_max });
        }
        rendered?;
        // The engine writes whole texts, so the bytes are always valid.
        String::from_utf8(text.bytes).map_err(|error| TextError::Template {
            message: error.to_string(),
            line: None,
        })
    }

    fn variables(&self, conversation: &Conversation) -> Value {
        let Conversation {
            messages,
            tools,
            add_generation_prompt,
            now,
            variables,
        } = conversation;
        let mut all: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, value) in variables {
            all.insert(name, Value::from(Serde(value)));
        }
        for (name, text) in &self.special_tokens {
            all.insert(name, Value::from(text.as_str()));
        }
        let tools = if tools.is_empty() {
            Value::from(())
        } else {
            Value::from(Serde(tools))
        };
        all.insert("tools", tools);
        all.insert("messages", Value::from(Serde(messages)));
        all.insert("add_generation_prompt", Value::from(*add_generation_prompt));
        if let Some(now) = *now {
            let tell = move |pattern: &str| now.format(pattern);
            all.insert("strftime_now", Value::from_function(tell));
        }
        Value::from_pairs(all)
    }
}

impl Conversation {
    /// Returns the same conversation as the strictest templates take it: with one system message, at its beginning, and
    /// no two messages of the user in a row. Later system messages become the user's, and neighbours one message, with
    /// an empty line between. `None` if it is so already.
    ///
    /// Agents write system messages at any place, and several messages of the user (an environment, then a task).
    pub fn in_turns(&self) -> Option<Self> {
        let mut messages: Vec<Message> = Vec::new();
        let mut is_beginning = true;
        for message in &self.messages {
            let is_system = message.role() == "system";
            is_beginning &= is_system;
            let message = match is_system && !is_beginning {
                true => message.said_by("user"),
                false => message.clone(),
            };
            let last = messages.last_mut();
            if !last.is_some_and(|last| last.takes(&message)) {
                messages.push(message);
            }
        }
        (messages != self.messages).then(|| Self {
            messages,
            ..self.clone()
        })
    }
}

/// The text that a template has written, up to a limit.
struct BoundedText {
    bytes: Vec<u8>,
    bytes_max: usize,
    is_full: bool,
}

impl std::io::Write for BoundedText {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len().saturating_add(piece.len()) > self.bytes_max {
            self.is_full = true;
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Message {
    /// Creates a message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let role = ("role".to_owned(), role.into().into());
        Self(
            [role, ("content".to_owned(), content.into().into())]
                .into_iter()
                .collect(),
        )
    }

    /// Adds what the speaker thought before, where templates look for it: in `reasoning_content`.
    #[must_use]
    pub fn behind_thought(mut self, thought: impl Into<String>) -> Self {
        let thought = thought.into().into();
        self.0.insert("reasoning_content".to_owned(), thought);
        self
    }

    /// Returns the speaker: `system`, `user`, `assistant`, `tool`.
    pub fn role(&self) -> &str {
        self.0
            .get("role")
            .and_then(|role| role.as_str())
            .unwrap_or_default()
    }

    /// Returns the message as another speaker's.
    fn said_by(&self, role: &str) -> Self {
        let mut fields = self.0.clone();
        fields.insert("role".to_owned(), role.into());
        Self(fields)
    }

    /// Adds the text of the next message, if both are texts of the system or both of the user; returns whether it did.
    fn takes(&mut self, next: &Self) -> bool {
        let can_join = self.role() == next.role() && matches!(self.role(), "system" | "user");
        let next = next.0.get("content").and_then(|content| content.as_str());
        match (self.0.get_mut("content"), next) {
            (Some(serde_json::Value::String(text)), Some(next)) if can_join => {
                text.push_str("\n\n");
                text.push_str(next);
                true
            }
            _ => false,
        }
    }

    /// Returns all fields of the message.
    pub fn fields(&self) -> &serde_json::Map<String, serde_json::Value> {
        &self.0
    }
}

impl TryFrom<serde_json::Value> for Message {
    type Error = TextError;

    /// Accepts any object with a string `role`; only the template decides which roles it knows.
    fn try_from(value: serde_json::Value) -> Result<Self> {
        let mismatch = |expected, found: &serde_json::Value| {
            Err(TextError::Message {
                expected,
                found: shortened(found.to_string()),
            })
        };
        match value {
            serde_json::Value::Object(fields) => match fields.get("role") {
                Some(serde_json::Value::String(_)) => Ok(Self(fields)),
                Some(role) => mismatch("a text as `role`", role),
                None => mismatch("a field `role`", &serde_json::Value::Object(fields)),
            },
            other => mismatch("an object", &other),
        }
    }
}

fn environment() -> std::result::Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    // With this, errors name the undefined variable in release builds too.
    environment.set_debug(true);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", python::tojson);
    environment.add_test("sequence", python::is_sequence);
    environment.add_function(
        "raise_exception",
        |message: String| -> std::result::Result<(), Error> {
            let raised = Raised(message);
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
        },
    );
    Ok(environment)
}

/// Replaces the tags `generation` and `endgeneration` by tags without effect.
///
/// `transformers` uses them to mark the answers in training data; they mean nothing for a prompt.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        let Some((inner, after)) = tag.split_once("%}") else {
            rest = tag;
            break;
        };
        match inner.trim_matches(['-', '+', ' ', '\t', '\r', '\n']) {
            "generation" => out.push_str(&inner.replace("generation", "if true")),
            "endgeneration" => out.push_str(&inner.replace("endgeneration", "endif")),
            _ => {
                // The next tag may begin inside this one: `{%` in a string.
                rest = tag;
                continue;
            }
        }
        out.push_str("%}");
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns whether a template reads a field of this name, as `message.name` or `message['name']`.
fn has_field(source: &str, name: &str) -> bool {
    let mut places = source.match_indices(name);
    places.any(|(at, _)| {
        let before = source[..at].chars().next_back();
        let behind = source[at + name.len()..].chars().next();
        let goes_on = |letter: char| letter.is_alphanumeric() || letter == '_';
        match before {
            Some('.') => !behind.is_some_and(goes_on),
            Some('\'' | '"') => behind == before,
            _ => false,
        }
    })
}

/// Runs the engine and turns its errors, panics included, into ours.
fn guarded<T>(call: impl FnOnce() -> std::result::Result<T, Error>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome.map_err(|error| failure(&error)),
        Err(_) => {
            let message = "the template engine stopped at this input".to_owned();
            Err(TextError::Template {
                message,
                line: None,
            })
        }
    }
}

fn failure(error: &Error) -> TextError {
    let mut cause = error.source();
    while let Some(source) = cause {
        if let Some(Raised(message)) = source.downcast_ref() {
            return TextError::Refused {
                message: shortened(message.clone()),
            };
        }
        cause = source.source();
    }
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TextError::Template {
        message: shortened(message),
        line: error.line(),
    }
}

/// The message of a call of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Name of the only template in its environment.
const NAME: &str = "chat";

/// Maximum number of the engine's steps, which take 0.6 s; beyond that a template counts as endless. Chosen: a
/// published template takes a few hundred steps a message. A fuzzer tries hundreds of templates a second.
const FUEL: u64 = if cfg!(fuzzing) { 100_000 } else { 20_000_000 };

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
