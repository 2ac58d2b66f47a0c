//! Answers held to a form: JSON, regular expressions, tool calls. Over `llguidance`.
//!
//! A form becomes a context-free grammar over bytes; which tokens may come next is found in a trie of the whole
//! vocabulary. `vocabulary` makes the trie, `tools` writes the grammars of calls. Schemas come from strangers:
//! their size is bounded here, the work they cause by the library's limits, and its panics become errors.

mod masks;
mod schema;
mod scout;
mod thread;
mod tools;
mod vocabulary;

use std::iter;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob};
use serde_json::{Value, json};

use super::tools::{Calls, Tool, ToolChoice, ToolSyntax};
use super::{GrammarState, Restriction, Result, TextError, Tokenizer};
use masks::Masks;

/// Makes grammars for one vocabulary. It can be shared between threads.
///
/// Making one looks at every token several times (0.7 s for 128 000 of them, two busy cores): do it at first use, once.
pub struct Grammars {
    factory: Arc<ParserFactory>,
    markers: tools::Markers,
}

impl Grammars {
    /// Grammars over the tokens of `tokenizer`, whose answers end with one of `eos_ids`.
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
            markers: tools::Markers::new(tokenizer),
        })
    }

    /// An instance of a JSON schema, properties in the order of the schema.
    ///
    /// # Errors
    /// `Form` if the schema is too large, has no instance, or says what is not supported.
    pub fn json_schema(&self, schema: &Value) -> Result<Grammar> {
        let schema = schema::prepared(schema).map_err(|error| unusable(SCHEMA, &error))?;
        self.grammar(SCHEMA, || Ok(TopLevelGrammar::from_json_schema(schema)))
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// `Form`, of a vocabulary that cannot write one.
    pub fn json_object(&self) -> Result<Grammar> {
        self.json_schema(&json!({"type": "object"}))
    }

    /// A text that matches a regular expression as a whole.
    ///
    /// # Errors
    /// `Form` if the expression is wrong, too large, or says what is not supported.
    pub fn regex(&self, pattern: &str) -> Result<Grammar> {
        let pattern = pattern.to_owned();
        self.grammar("regular expression", move || {
            schema::check_bytes(pattern.len())?;
            Ok(TopLevelGrammar::from_regex(&pattern))
        })
    }

    /// Calls of `tools` with arguments as their schemas want them, or text where `choice` allows it. `None` if it
    /// allows no call: text needs no grammar.
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
        match choice {
            ToolChoice::None => Ok(None),
            ToolChoice::Auto if tools.is_empty() => Ok(None),
            _ => {
                let grammar = tools::grammar(syntax, &self.markers, tools, choice, calls);
                self.grammar("tools", || grammar).map(Some)
            }
        }
    }

    /// Compiles a grammar. `form` is what its source is called.
    fn grammar(
        &self,
        form: &'static str,
        source: impl FnOnce() -> anyhow::Result<TopLevelGrammar> + Send + 'static,
    ) -> Result<Grammar> {
        let masks = Masks::start(&self.factory, source);
        let masks = masks.map_err(|error| unusable(form, &error))?;
        Ok(Grammar { masks })
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("Grammars").field("tokens", &tokens).finish()
    }
}

/// A form that holds one answer.
#[derive(Debug)]
pub struct Grammar {
    masks: Masks,
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

/// Forbids tokens that are not in the set; a head may have more rows than the vocabulary has tokens.
fn forbid_others(allowed: &SimpleVob, logits: &mut [f32]) {
    let known = allowed.len().min(logits.len());
    let (known, padding) = logits.split_at_mut(known);
    padding.fill(f32::NEG_INFINITY);
    let words = allowed.as_slice().iter().copied().chain(iter::repeat(0));
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

/// The error on one line, without the state and the traces that the library adds in tags.
fn message(error: &anyhow::Error) -> String {
    let whole = format!("{error:#}");
    let said = whole.split("\n<").next().unwrap_or_default();
    let words: Vec<&str> = said.split_whitespace().collect();
    words.join(" ").chars().take(MESSAGE_CHARS_MAX).collect()
}

/// What the compiled form is called, where it is a schema.
const SCHEMA: &str = "JSON schema";

/// An error may quote the schema.
const MESSAGE_CHARS_MAX: usize = 300;

/// The library's own limits, less memory: 1 to 2 kB a lexer state, a few bytes a symbol. Its documentation gives the
/// speeds: 20 ms for the initial fuel, 14 ms and 2.5 ms for a step's.
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
