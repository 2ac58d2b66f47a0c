//! Answers restricted to a form: JSON, regular expressions, tool calls. Based on `llguidance`.
//!
//! A form becomes a context-free grammar over bytes; the tokens that may come next are found in a trie of the whole
//! vocabulary. `vocabulary` builds the trie, `tools` writes the grammars of calls, `thoughts` those of what comes before. Schemas are untrusted: their size
//! and their known ways to blow up are bounded here; the work of making masks is bounded by the library's limits, and
//! its panics become errors. The library does not bound the cost of compiling, so untrusted forms are compiled in a
//! process that can be killed (`heg-confine`), by [`Grammars::compile`], and answers follow them over a [`FrameLink`].

mod expansion;
mod form;
mod maker;
mod markers;
mod masks;
mod schema;
mod scout;
mod thoughts;
mod thread;
mod tools;
mod vocabulary;
mod wire;

use std::iter;
use std::sync::Arc;

use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use super::tools::{Calls, Tool, ToolChoice, ToolSyntax};
use super::{GrammarState, Restriction, Result, TextError, Tokenizer};
use markers::Markers;
use masks::Masks;
use thread::{Ears, Said, Step, TokenMask, say};

pub use form::AnswerForm;
pub use wire::{FrameLink, Silence};

/// Makes grammars for one vocabulary. It can be shared between threads.
///
/// Creating one visits every token several times (0.7 s for 128 000 of them, two busy cores), so do it once, at first
/// use.
pub struct Grammars {
    factory: Arc<ParserFactory>,
    markers: Markers,
}

impl Grammars {
    /// Creates grammars over the tokens of `tokenizer`, whose answers end with one of `eos_ids`.
    ///
    /// # Errors
    /// `Form` if the bytes of a token depend on its neighbours.
    pub fn new(tokenizer: &Tokenizer, eos_ids: &[u32]) -> Result<Self> {
        let environment = vocabulary::environment(tokenizer, eos_ids)?;
        let slices = SlicedBiasComputer::general_slices();
        let capabilities = InferenceCapabilities::default();
        let factory = ParserFactory::new(&environment, capabilities, &slices);
        let mut factory = factory.map_err(|error| unusable("vocabulary", &error))?;
        *factory.limits_mut() = LIMITS;
        factory.quiet();
        Ok(Self {
            factory: Arc::new(factory),
            markers: Markers::new(tokenizer),
        })
    }

    /// Returns a grammar for an instance of a JSON schema, properties in the order of the schema.
    ///
    /// # Errors
    /// `Form` if the schema is too large, has no instance, or uses an unsupported keyword.
    pub fn json_schema(&self, schema: &Value) -> Result<Grammar> {
        self.grammar(AnswerForm::JsonSchema(schema.clone()))
    }

    /// Returns a grammar for any JSON object.
    ///
    /// # Errors
    /// `Form`, if the vocabulary cannot write one.
    pub fn json_object(&self) -> Result<Grammar> {
        self.grammar(AnswerForm::JsonObject)
    }

    /// Returns a grammar for a text that, as a whole, matches a regular expression.
    ///
    /// # Errors
    /// `Form` if the expression is invalid, too large, or unsupported.
    pub fn regex(&self, pattern: &str) -> Result<Grammar> {
        self.grammar(AnswerForm::Regex(pattern.to_owned()))
    }

    /// Returns a grammar for calls of `tools`, with arguments that follow their schemas, or text if `choice` allows it.
    /// `None` if `choice` allows no call: text needs no grammar.
    ///
    /// # Errors
    /// `Form` if there is no such tool, or as for [`json_schema`](Self::json_schema).
    pub fn tool_calls(
        &self,
        syntax: ToolSyntax,
        tools: &[Tool],
        choice: &ToolChoice,
        calls: Calls,
    ) -> Result<Option<Grammar>> {
        self.form(AnswerForm::ToolCalls {
            syntax,
            tools: tools.to_vec(),
            choice: choice.clone(),
            calls,
        })
    }

    /// Returns a grammar for a form; `None` if it allows any text.
    ///
    /// # Errors
    /// `Form` if a tool is not there, or as for [`json_schema`](Self::json_schema).
    pub fn form(&self, form: AnswerForm) -> Result<Option<Grammar>> {
        match form.is_free() {
            true => Ok(None),
            false => self.grammar(form).map(Some),
        }
    }

    /// Compiles a grammar, and starts the thread that makes its masks.
    fn grammar(&self, form: AnswerForm) -> Result<Grammar> {
        let name = form.name();
        let source = form.source(&self.markers);
        let masks = Masks::start(&self.factory, || source);
        let masks = masks.map_err(|error| unusable(name, &error))?;
        Ok(Grammar { masks })
    }

    /// Compiles a form on this thread, which may need a large stack ([`COMPILE_STACK_BYTES`]), and makes its first
    /// mask.
    ///
    /// # Errors
    /// `Form` as for [`json_schema`](Self::json_schema).
    pub fn compile(&self, form: AnswerForm) -> Result<CompiledForm> {
        let name = form.name();
        let compiled = catch_unwind(std::panic::AssertUnwindSafe(|| {
            let parser = self.factory.create_parser(form.source(&self.markers)?)?;
            let mut matcher = Matcher::new(Ok(parser));
            let first = matcher.compute_mask_or_eos();
            let first = TokenMask::from(first.map_err(|error| stuck(&error))?);
            Ok(CompiledForm { matcher, first })
        }));
        compiled.map_err(|error| unusable(name, &error))
    }
}

/// A compiled form, with the mask for the first token.
pub struct CompiledForm {
    matcher: Matcher,
    first: TokenMask,
}

impl CompiledForm {
    /// Makes the masks of one answer for a [`Grammar::over`] the other end of a link, until the other end is gone.
    pub fn attend(self, link: &mut dyn FrameLink) {
        say(self.matcher, Some(self.first), &mut Linked(link));
    }
}

impl Clone for CompiledForm {
    /// Copies the form for another answer, with which it shares nothing that changes.
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            first: self.first.clone(),
        }
    }
}

impl std::fmt::Debug for CompiledForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledForm")
            .field("tokens", &self.first.len())
            .finish()
    }
}

/// The maker's end of a link.
struct Linked<'a>(&'a mut dyn FrameLink);

impl Ears for Linked<'_> {
    fn next(&mut self) -> Option<Step> {
        Step::from_bytes(&self.0.receive(None).ok()?)
    }

    fn say(&mut self, said: Said) -> Option<()> {
        self.0.send(&said.to_bytes()).ok()
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("Grammars").field("tokens", &tokens).finish()
    }
}

/// A compiled form that restricts one answer.
#[derive(Debug)]
pub struct Grammar {
    masks: Masks,
}

impl Grammar {
    /// Creates a grammar whose form was compiled by the process at the other end of a link ([`CompiledForm::attend`]).
    ///
    /// # Errors
    /// `Restriction`, if the first mask does not come in time.
    pub fn over(link: Box<dyn FrameLink>) -> Result<Self> {
        Masks::over(link).map(|masks| Self { masks })
    }
}

impl Restriction for Grammar {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<()> {
        forbid_others(self.masks.mask()?, logits);
        Ok(())
    }

    fn chosen(&mut self, token: u32) -> Result<GrammarState> {
        self.masks.take(token)
    }

    fn undo(&mut self) -> Result<()> {
        self.masks.undo()
    }

    fn look_ahead(&mut self) {
        self.masks.look_ahead();
    }

    fn forced(&self) -> &[u32] {
        self.masks.forced()
    }

    fn admitted(&mut self, tokens: &[u32]) -> usize {
        self.masks.admitted(tokens)
    }
}

/// Forbids tokens that are not in the set. A head may have more rows than the vocabulary has tokens.
fn forbid_others(allowed: &TokenMask, logits: &mut [f32]) {
    let known = allowed.len().min(logits.len());
    let (known, padding) = logits.split_at_mut(known);
    padding.fill(f32::NEG_INFINITY);
    let words = allowed.words().iter().copied().chain(iter::repeat(0));
    for (word, logits) in words.zip(known.chunks_mut(u32::BITS as usize)) {
        if word == u32::MAX {
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

fn unusable(form: &'static str, error: &anyhow::Error) -> TextError {
    TextError::Form {
        form,
        message: message(error),
    }
}

fn stuck(error: &anyhow::Error) -> TextError {
    TextError::Restriction {
        message: message(error),
    }
}

/// Formats the error on one line, without the state and the traces that the library adds in tags.
fn message(error: &anyhow::Error) -> String {
    let whole = format!("{error:#}");
    let said = whole.split("\n<").next().unwrap_or_default();
    let words: Vec<&str> = said.split_whitespace().collect();
    words.join(" ").chars().take(MESSAGE_CHARS_MAX).collect()
}

/// Stack that compiling a form may take, in bytes: the library recurses along references.
pub const COMPILE_STACK_BYTES: usize = masks::STACK_BYTES;

/// Maximum length of an error's message, in characters: an error may quote the schema.
const MESSAGE_CHARS_MAX: usize = 300;

/// The library's own limits, with less memory: 1 to 2 kB a lexer state, a few bytes a symbol. By its documentation, the
/// initial fuel lasts 20 ms, and that of a step 14 ms and 2.5 ms.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 10_000,
    max_grammar_size: 200_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

#[cfg(test)]
mod tests;
