//! The model that is served: an engine and the text side of its bundle. Turns the prompt of a request into tokens.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::{ApiError, Result};
use super::fields::describe;
use super::request::{Bound, PromptBounds, PromptText};
use super::timeline::Timeline;
use super::tools::{AnswerConstraint, LazyGrammars, Tooling};
use heg_runtime::Loaded;
use heg_runtime::RuntimeError;
use heg_runtime::engine::Engine;
use heg_text::{ChatTemplate, Conversation, Special, TextError, Tokenizer};

/// A model on its engine. Without a tokenizer, prompts and answers are token ids.
pub struct ServedModel {
    pub(super) engine: Engine,
    pub(super) timeline: Timeline,
    pub(super) name: String,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    template: Option<ChatTemplate>,
    grammars: LazyGrammars,
    bounds: PromptBounds,
}

impl ServedModel {
    /// The model of a bundle, by the name that the bundle gives it, on an engine that `timeline` observes.
    ///
    /// # Errors
    /// The tokenizer or the chat template cannot be read. A bundle may lack either.
    pub fn new(loaded: &Loaded, engine: Engine, timeline: Timeline) -> Result<Self, RuntimeError> {
        let tokenizer = there(loaded.tokenizer())?;
        let context_tokens = engine.manifest().model.context_tokens;
        let kv_tokens = engine.kv_tokens();
        let bounds = PromptBounds {
            tokens: context_tokens.min(kv_tokens),
            bounded_by: match kv_tokens < context_tokens {
                true => Bound::KvBudget,
                false => Bound::Context,
            },
            token_bytes: tokenizer
                .as_ref()
                .map_or(usize::MAX, Tokenizer::token_bytes_max),
        };
        Ok(Self {
            name: engine.manifest().model.name.clone(),
            engine,
            timeline,
            bounds,
            tokenizer: tokenizer.map(Arc::new),
            template: there(loaded.chat_template())?,
            grammars: LazyGrammars::default(),
        })
    }

    /// Name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bounds on prompts.
    pub(super) fn bounds(&self) -> &PromptBounds {
        &self.bounds
    }

    /// The prompt of a conversation.
    pub(super) fn chat_prompt(&self, conversation: &Conversation) -> Result<Vec<u32>> {
        let (template, tokenizer) = self.text_side()?;
        let bytes_max = self.bounds.text_bytes_max();
        let text = template.render_within(conversation, bytes_max);
        let text = text.map_err(|error| match error {
            TextError::TooLong { .. } => self.bounds.too_long(bytes_max),
            error => RuntimeError::from(error).into(),
        })?;
        let prompt = tokenizer.encode(&text, Special::AsWritten);
        self.checked(prompt.map_err(RuntimeError::from)?)
    }

    /// The constraint on an answer of this format.
    pub(super) fn hold(&self, tooling: &Tooling) -> Result<AnswerConstraint> {
        let (template, tokenizer) = self.text_side()?;
        tooling.hold(template, tokenizer, self.eos_ids(), &self.grammars)
    }

    fn text_side(&self) -> Result<(&ChatTemplate, &Tokenizer)> {
        let no_text = |missing| ApiError::NoText { missing };
        let template = self.template.as_ref();
        let template = template.ok_or_else(|| no_text("chat template"))?;
        let tokenizer = self.tokenizer.as_deref();
        Ok((template, tokenizer.ok_or_else(|| no_text("tokenizer"))?))
    }

    /// A bare prompt.
    pub(super) fn bare_prompt(&self, prompt: PromptText) -> Result<Vec<u32>> {
        let prompt = match (prompt, &self.tokenizer) {
            (PromptText::Tokens(ids), _) => ids,
            (PromptText::Text(text), Some(tokenizer)) => tokenizer
                .encode(&text, Special::Add)
                .map_err(RuntimeError::from)?,
            (PromptText::Text(_), None) => {
                return Err(ApiError::NoText {
                    missing: "tokenizer",
                });
            }
        };
        self.checked(prompt)
    }

    /// The tokens of an expected answer.
    pub(super) fn prediction(&self, text: &str) -> Result<Vec<u32>> {
        let (_, tokenizer) = self.text_side()?;
        let tokens = tokenizer.encode(text, Special::AsWritten);
        let tokens = tokens.map_err(RuntimeError::from)?;
        self.bounds.check_prediction(tokens.len())?;
        Ok(tokens)
    }

    /// Refuses requests to other models.
    pub(super) fn check_model(&self, asked: &str) -> Result<()> {
        if asked == self.name {
            return Ok(());
        }
        Err(ApiError::Model {
            asked: describe(&asked.into()),
            served: self.name.clone(),
        })
    }

    /// Refuses biases on tokens that the model does not have.
    pub(super) fn check_biases(&self, biases: &[(u32, f32)]) -> Result<()> {
        let vocab = self.engine.manifest().model.vocab;
        match biases.iter().find(|(token, _)| *token >= vocab) {
            None => Ok(()),
            Some((token, _)) => Err(ApiError::Field {
                field: "logit_bias".to_owned(),
                expected: "token ids within the vocabulary",
                found: format!("{token}, with {vocab} tokens in the vocabulary"),
            }),
        }
    }

    /// Room for an answer to a prompt of so many tokens.
    pub(super) fn room(&self, prompt_tokens: usize) -> u32 {
        let tokens = self.bounds.tokens;
        tokens.saturating_sub(u32::try_from(prompt_tokens).unwrap_or(u32::MAX))
    }

    /// Tokens that end an answer.
    pub(super) fn eos_ids(&self) -> &[u32] {
        &self.engine.manifest().text.eos_ids
    }

    fn checked(&self, prompt: Vec<u32>) -> Result<Vec<u32>> {
        let vocab = self.engine.manifest().model.vocab;
        if prompt.is_empty() {
            return Err(RuntimeError::EmptyPrompt.into());
        }
        if let Some(&found) = prompt.iter().find(|&&token| token >= vocab) {
            return Err(RuntimeError::Token { found, vocab }.into());
        }
        self.bounds.check_tokens(prompt.len())?;
        Ok(prompt)
    }

    /// The entry of `/v1/models`.
    pub(super) fn card(&self, created: u64) -> Value {
        let model = &self.engine.manifest().model;
        json!({
            "id": self.name,
            "object": "model",
            "created": created,
            "owned_by": "heg",
            "max_model_len": model.context_tokens,
            "vocab_size": model.vocab,
        })
    }
}

/// A part of the text side, `None` where the bundle has none.
fn there<T>(part: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match part {
        Ok(part) => Ok(Some(part)),
        Err(RuntimeError::NoText { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
