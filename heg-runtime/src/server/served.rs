//! What is served: an engine, and the text side of its bundle; and how a request's prompt becomes tokens.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::{ApiError, Result};
use super::fields::describe;
use super::request::PromptText;
use super::timeline::Timeline;
use super::tools::{Held, LazyGrammars, Tooling};
use crate::engine::Engine;
use crate::error::RuntimeError;
use crate::load::Loaded;
use crate::text::{ChatTemplate, Conversation, Special, Tokenizer};

/// A model on its engine. Without a tokenizer it answers token ids with token ids.
pub struct Served {
    pub(super) engine: Engine,
    pub(super) timeline: Timeline,
    pub(super) name: String,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    template: Option<ChatTemplate>,
    grammars: LazyGrammars,
}

impl Served {
    /// The model of a bundle, by the name that the bundle gives it, on an engine that `timeline` observes.
    ///
    /// # Errors
    /// A tokenizer or a template that cannot be read. One that is missing is none.
    pub fn new(loaded: &Loaded, engine: Engine, timeline: Timeline) -> Result<Self, RuntimeError> {
        Ok(Self {
            name: engine.manifest().model.name.clone(),
            engine,
            timeline,
            tokenizer: there(loaded.tokenizer())?.map(Arc::new),
            template: there(loaded.chat_template())?,
            grammars: LazyGrammars::default(),
        })
    }

    /// Name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The prompt of a conversation, and what holds the answer to its form.
    pub(super) fn chat_prompt(
        &self,
        conversation: &Conversation,
        tooling: &Tooling,
    ) -> Result<(Vec<u32>, Held)> {
        let no_text = |missing| ApiError::NoText { missing };
        let template = self.template.as_ref();
        let template = template.ok_or_else(|| no_text("chat template"))?;
        let tokenizer = self.tokenizer.as_ref();
        let tokenizer = tokenizer.ok_or_else(|| no_text("tokenizer"))?;
        let text = template.render(conversation).map_err(RuntimeError::from)?;
        let prompt = tokenizer
            .encode(&text, Special::AsWritten)
            .map_err(RuntimeError::from)?;
        let held = tooling.hold(template, tokenizer, self.eos_ids(), &self.grammars)?;
        Ok((self.checked(prompt)?, held))
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

    /// Room for an answer to a prompt of so many tokens.
    pub(super) fn room(&self, prompt_tokens: usize) -> u32 {
        let context = self.engine.manifest().model.context_tokens;
        context.saturating_sub(u32::try_from(prompt_tokens).unwrap_or(u32::MAX))
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
        if self.room(prompt.len()) == 0 {
            // One token of an answer has to fit too.
            let asked = prompt.len() + 1;
            let context = self.engine.manifest().model.context_tokens as usize;
            return Err(RuntimeError::Context { asked, context }.into());
        }
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
