//! The served model: an engine and the text side of its bundle. Turns the prompt of a request into tokens.
//!
//! Templates, tokenizers and forms are untrusted, so prompts are made and forms compiled in a worker's processes. In
//! this process the tokenizer only decodes tokens, and the template is only searched for the syntax of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use heg_confine::{
    Confined, Forms, PromptMaker, TextToEncode, TextWorker, Wait, WorkerAssets, WorkerProgram,
    probe,
};
use serde_json::{Value, json};

use super::account::Scope;
use super::dashboard::StatusCache;
use super::error::{ApiError, Result};
use super::flows::Flows;
use super::request::{Bound, PromptBounds, PromptText};
use super::texts::TextTokens;
use super::timeline::Timeline;
use super::tools::{AnswerConstraint, AskedForm, Tooling};
use heg_runtime::Loaded;
use heg_runtime::engine::{AnswerKind, Engine, Health};
use heg_runtime::{ExecError, RuntimeError};
use heg_text::{ChatTemplate, Conversation, TextError, Tokenizer};

/// A model on its engine. Without a tokenizer, prompts and answers are token ids.
pub struct ServedModel {
    pub(super) engine: Engine,
    pub(super) timeline: Timeline,
    pub(super) name: String,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) flows: Flows,
    pub(super) status: StatusCache,
    /// Whether all kernels are ready.
    ready: AtomicBool,
    template: Option<ChatTemplate>,
    worker: TextWorker,
    prompts: PromptMaker,
    forms: Forms,
    bounds: PromptBounds,
}

impl ServedModel {
    /// Creates the model of a bundle, under the bundle's name for it, on an engine that `timeline` observes. `program`
    /// is started as the worker.
    ///
    /// # Errors
    /// The tokenizer or the chat template cannot be read. A bundle may lack either.
    pub fn new(
        loaded: &Loaded,
        engine: Engine,
        timeline: Timeline,
        program: WorkerProgram,
    ) -> Result<Self, RuntimeError> {
        let worker = text_worker(loaded, program);
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
            flows: Flows::default(),
            status: StatusCache::default(),
            ready: AtomicBool::new(false),
            bounds,
            tokenizer: tokenizer.map(Arc::new),
            template: there(loaded.chat_template())?,
            prompts: PromptMaker::new(worker.clone()),
            forms: Forms::new(worker.clone()),
            worker,
        })
    }

    /// Returns the model under another name than its bundle's.
    #[must_use]
    pub fn named(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// Returns the name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the bounds on prompts.
    pub(super) fn bounds(&self) -> &PromptBounds {
        &self.bounds
    }

    /// Waits until all kernels are ready, and checks that the bundle's text side can make a prompt at all.
    ///
    /// # Errors
    /// Those of kernels; `TextSide`, if it cannot.
    pub(super) fn wait_ready(&self) -> Result<(), RuntimeError> {
        self.engine.wait_ready()?;
        self.ready.store(true, Ordering::Release);
        self.probe()
    }

    /// Returns whether all kernels are ready.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    fn probe(&self) -> Result<(), RuntimeError> {
        if self.tokenizer.is_none() {
            return Ok(());
        }
        let outcome = probe(&self.worker, self.template.is_some());
        outcome.map_err(|error| RuntimeError::TextSide {
            why: error.to_string(),
        })
    }

    /// Makes the prompt of a conversation.
    pub(super) fn chat_prompt(
        &self,
        conversation: Conversation,
        wait: Wait<'_>,
    ) -> Result<Vec<u32>> {
        self.text_side()?;
        let bytes_max = self.bounds.text_bytes_max();
        let prompt = self.tokens(&TextToEncode::Chat(conversation, bytes_max), wait)?;
        self.checked(prompt)
    }

    /// Encodes a text in a process of the worker.
    fn tokens(&self, text: &TextToEncode, wait: Wait<'_>) -> Result<Vec<u32>> {
        // A text with more tokens is refused with a lower bound on their number.
        let tokens_max = (self.bounds.tokens as usize).saturating_mul(8);
        let tokens = self.prompts.tokens(text, tokens_max, wait);
        tokens.map_err(|error| match error {
            Confined::Refused(TextError::TooLong { bytes_max }) => self.bounds.too_long(bytes_max),
            error => error.into(),
        })
    }

    /// Returns the form of an answer that a request asks for.
    pub(super) fn asked_form(&self, scope: Scope, tooling: &Tooling) -> Result<AskedForm> {
        let (template, tokenizer) = self.text_side()?;
        let asked = tooling.asked(template, tokenizer)?;
        let form = asked.form.as_ref();
        let is_known = form.is_some_and(|form| self.forms.knows(scope.id().0, form));
        Ok(AskedForm { is_known, ..asked })
    }

    /// Returns the constraints on the answers to a request; their form is compiled once.
    pub(super) fn hold(
        &self,
        scope: Scope,
        asked: &AskedForm,
        count: usize,
        wait: Wait<'_>,
    ) -> Result<Vec<AnswerConstraint>> {
        let syntax = asked.syntax;
        let Some(form) = &asked.form else {
            let free = |_| AnswerConstraint {
                syntax,
                ..AnswerConstraint::default()
            };
            return Ok((0..count).map(free).collect());
        };
        let held = self.forms.hold(scope.id().0, form, count, wait)?;
        let kept_bytes = held.kept_bytes;
        let constraint = |grammar| AnswerConstraint {
            restriction: Some(Box::new(grammar) as _),
            syntax,
            kept_bytes,
        };
        Ok(held.grammars.into_iter().map(constraint).collect())
    }

    /// Returns whether the chat template reads a variable.
    pub(super) fn reads(&self, variable: &str) -> bool {
        let template = self.template.as_ref();
        template.is_some_and(|template| template.reads(variable))
    }

    fn text_side(&self) -> Result<(&ChatTemplate, &Tokenizer)> {
        let no_text = |missing| ApiError::NoText { missing };
        let template = self.template.as_ref();
        let template = template.ok_or_else(|| no_text("chat template"))?;
        let tokenizer = self.tokenizer.as_deref();
        Ok((template, tokenizer.ok_or_else(|| no_text("tokenizer"))?))
    }

    /// Makes the tokens of a bare prompt.
    pub(super) fn bare_prompt(&self, prompt: PromptText, wait: Wait<'_>) -> Result<Vec<u32>> {
        let prompt = self.encoded(prompt, wait)?;
        self.checked(prompt)
    }

    fn encoded(&self, prompt: PromptText, wait: Wait<'_>) -> Result<Vec<u32>> {
        match (prompt, &self.tokenizer) {
            (PromptText::Tokens(ids), _) => Ok(ids),
            (PromptText::Text(text), Some(_)) => self.tokens(&TextToEncode::Bare(text), wait),
            (PromptText::Text(_), None) => Err(ApiError::NoText {
                missing: "tokenizer",
            }),
        }
    }

    /// Makes the tokens of a predicted answer.
    pub(super) fn prediction(&self, text: String, wait: Wait<'_>) -> Result<Vec<u32>> {
        self.text_side()?;
        let tokens = self.tokens(&TextToEncode::AsWritten(text), wait)?;
        self.bounds.check_prediction(tokens.len())?;
        Ok(tokens)
    }

    /// Makes the tokens of a text that is to get a vector.
    pub(super) fn text_tokens(&self, text: PromptText, wait: Wait<'_>) -> Result<Vec<u32>> {
        let tokens = self.encoded(text, wait)?;
        let checked = self.engine.check(&tokens).map_err(RuntimeError::from);
        Ok(checked.map(|()| tokens)?)
    }

    /// Makes the tokens of a query and a document, which are to get a score.
    pub(super) fn pair_tokens(
        &self,
        query: &str,
        document: String,
        wait: Wait<'_>,
    ) -> Result<TextTokens> {
        if self.tokenizer.is_none() {
            return Err(ApiError::NoTokenizer);
        }
        let pair = TextToEncode::Pair(query.to_owned(), document);
        let mut tokens = self.tokens(&pair, wait)?;
        let second_at = match tokens.is_empty() {
            true => 0,
            false => tokens.remove(0),
        };
        let checked = self.engine.check(&tokens).map_err(RuntimeError::from);
        Ok(checked.map(|()| TextTokens {
            tokens,
            second_at: Some(second_at),
        })?)
    }

    /// Refuses requests for answers of another kind than the model's.
    pub(super) fn check_kind(&self, asked: AnswerKind) -> Result<()> {
        let checked = self.engine.check_kind(asked);
        checked.map_err(|_| ApiError::Output {
            model: self.name.clone(),
            gives: self.engine.gives(),
            asked,
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

    /// Returns the number of tokens left for an answer after a prompt of `prompt_tokens` tokens.
    pub(super) fn room(&self, prompt_tokens: usize) -> u32 {
        let tokens = self.bounds.tokens;
        tokens.saturating_sub(u32::try_from(prompt_tokens).unwrap_or(u32::MAX))
    }

    /// Whether it answers conversations.
    pub(super) fn chats(&self) -> bool {
        self.text_side().is_ok() && self.check_kind(AnswerKind::Tokens).is_ok()
    }

    /// Returns the tokens that end an answer.
    pub(super) fn eos_ids(&self) -> &[u32] {
        &self.engine.manifest().text.eos_ids
    }

    fn checked(&self, prompt: Vec<u32>) -> Result<Vec<u32>> {
        let vocab = self.engine.manifest().model.vocab;
        if prompt.is_empty() {
            return Err(ExecError::EmptyPrompt.into());
        }
        if let Some(&found) = prompt.iter().find(|&&token| token >= vocab) {
            return Err(ExecError::Token { found, vocab }.into());
        }
        self.bounds.check_tokens(prompt.len())?;
        Ok(prompt)
    }

    /// Returns the entry of `/v1/models`.
    pub(super) fn card(&self, created: u64, aliases: &[&str]) -> Value {
        let model = &self.engine.manifest().model;
        let state = match self.engine.health() {
            Health::Loading => "loading",
            Health::Ready => "ready",
            Health::Degraded(_) => "degraded",
            Health::Failed(_) => "failed",
        };
        let mut card = json!({
            "id": self.name,
            "object": "model",
            "created": created,
            "owned_by": "heg",
            "max_model_len": model.context_tokens,
            "vocab_size": model.vocab,
            "aliases": aliases,
            "state": state,
            "bundle_bytes": self.engine.bundle().mapping().len(),
        });
        if let Some(is_resident) = self.engine.is_resident() {
            card["resident"] = json!(is_resident);
        }
        card
    }
}

/// Creates a worker with the text side of a bundle.
pub fn text_worker(loaded: &Loaded, program: WorkerProgram) -> TextWorker {
    let source = loaded.text_source();
    TextWorker::start(program, move || {
        let files = source.read().map_err(|error| error.chain())?;
        Ok(WorkerAssets {
            tokenizer: files.tokenizer,
            template: files.template,
            special_tokens: files.special_tokens,
            eos_ids: files.eos_ids,
        })
    })
}

/// Returns a part of the text side; `None` if the bundle has none.
fn there<T>(part: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match part {
        Ok(part) => Ok(Some(part)),
        Err(RuntimeError::NoText { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
