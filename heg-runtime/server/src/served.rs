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
use heg_text::{ChatTemplate, Conversation, TextError, ThoughtParser, Tokenizer};

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
        let tokens = self.prompts.tokens(text, self.tokens_max(), wait);
        tokens.map_err(|error| self.refusal(error))
    }

    /// Most tokens of a text that a process of the worker gives. One with more is refused with a lower bound on their number.
    fn tokens_max(&self) -> usize {
        (self.bounds.tokens as usize).saturating_mul(8)
    }

    fn refusal(&self, error: Confined) -> ApiError {
        match error {
            Confined::Refused(TextError::TooLong { bytes_max }) => self.bounds.too_long(bytes_max),
            error => error.into(),
        }
    }

    /// Returns the form of an answer that a request asks for, with a place for what the model thinks first, if it does.
    pub(super) fn asked_form(
        &self,
        scope: Scope,
        tooling: &Tooling,
        thoughts: Option<&ThoughtParser>,
    ) -> Result<AskedForm> {
        let (template, tokenizer) = self.text_side()?;
        let mut asked = tooling.asked(template, tokenizer)?;
        if let Some(thoughts) = thoughts {
            asked.form = asked.form.map(|form| thoughts.before(form));
        }
        let form = asked.form.as_ref();
        asked.is_known = form.is_some_and(|form| self.forms.knows(scope.id().0, form));
        Ok(asked)
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

    /// Returns whether the chat template reads a variable, or a field of messages.
    pub(super) fn reads(&self, name: &str) -> bool {
        let template = self.template.as_ref();
        template.is_some_and(|template| template.reads(name))
    }

    /// Returns a parser of what the model thinks in the answer to a prompt; `None` if its template knows no thoughts.
    pub(super) fn thoughts(&self, prompt: &[u32]) -> Result<Option<ThoughtParser>> {
        let (Some(template), Some(tokenizer)) = (&self.template, &self.tokenizer) else {
            return Ok(None);
        };
        Ok(ThoughtParser::of(template, prompt, tokenizer).map_err(RuntimeError::from)?)
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

    /// Makes the tokens of texts that are to get vectors. An error stands beside the place of its text.
    pub(super) fn texts_tokens(
        &self,
        texts: Vec<PromptText>,
        wait: Wait<'_>,
    ) -> std::result::Result<Vec<TextTokens>, (usize, ApiError)> {
        let is_text = |text: &PromptText| matches!(text, PromptText::Text(_));
        if let Some(at) = texts.iter().position(is_text)
            && self.tokenizer.is_none()
        {
            let missing = "tokenizer";
            return Err((at, ApiError::NoText { missing }));
        }
        let mut all = Vec::with_capacity(texts.len());
        let (mut written, mut places) = (Vec::new(), Vec::new());
        for (at, text) in texts.into_iter().enumerate() {
            match text {
                PromptText::Tokens(ids) => all.push(ids),
                PromptText::Text(text) => {
                    written.push(TextToEncode::Bare(text));
                    places.push(at);
                    all.push(Vec::new());
                }
            }
        }
        let encoded = self
            .prompts
            .tokens_of_all(&written, self.tokens_max(), wait);
        let encoded = encoded.map_err(|(at, error)| {
            let place = places.get(at).copied().unwrap_or(at);
            (place, self.refusal(error))
        })?;
        for (at, tokens) in places.into_iter().zip(encoded) {
            if let Some(place) = all.get_mut(at) {
                *place = tokens;
            }
        }
        let texts = all.into_iter().map(|tokens| TextTokens {
            tokens,
            second_at: None,
        });
        self.checked_texts(texts)
    }

    /// Makes the tokens of a query with each document, which are to get scores. An error stands beside the place of its
    /// document.
    pub(super) fn pairs_tokens(
        &self,
        query: &str,
        documents: Vec<String>,
        wait: Wait<'_>,
    ) -> std::result::Result<Vec<TextTokens>, (usize, ApiError)> {
        if self.tokenizer.is_none() {
            return Err((0, ApiError::NoTokenizer));
        }
        let pairs = documents.into_iter();
        let pairs = pairs.map(|document| TextToEncode::Pair(query.to_owned(), document));
        let pairs: Vec<TextToEncode> = pairs.collect();
        let encoded = self.prompts.tokens_of_all(&pairs, self.tokens_max(), wait);
        let encoded = encoded.map_err(|(at, error)| (at, self.refusal(error)))?;
        let pairs = encoded.into_iter().map(|mut tokens| {
            let second_at = match tokens.is_empty() {
                true => 0,
                false => tokens.remove(0),
            };
            TextTokens {
                tokens,
                second_at: Some(second_at),
            }
        });
        self.checked_texts(pairs)
    }

    /// Returns texts that the engine takes.
    fn checked_texts(
        &self,
        texts: impl Iterator<Item = TextTokens>,
    ) -> std::result::Result<Vec<TextTokens>, (usize, ApiError)> {
        let checked = texts.enumerate().map(|(at, text)| {
            let checked = self.engine.check(&text.tokens).map_err(RuntimeError::from);
            checked.map(|()| text).map_err(|error| (at, error.into()))
        });
        checked.collect()
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
