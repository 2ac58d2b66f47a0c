//! The prompt of a request, and the bounds on its length.

use crate::error::{ApiError, Result};

/// A bare prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptText {
    /// Text, to which the tokenizer adds its special tokens.
    Text(String),
    /// Token ids, used unchanged.
    Tokens(Vec<u32>),
}

/// Bounds on the length of a prompt. They are checked while a body is read, so that no more than that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptBounds {
    /// Maximum number of tokens of prompt and answer together.
    pub tokens: u32,
    /// The resource that sets this maximum.
    pub bounded_by: Bound,
    /// Size of the longest token, in bytes.
    pub token_bytes: usize,
}

/// The resource that limits the tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The context that the model was compiled for.
    Context,
    /// The memory that the server may use for KV caches.
    KvBudget,
}

impl PromptBounds {
    /// Checks that a prompt of `tokens` tokens leaves room for an answer.
    pub(crate) fn check_tokens(&self, tokens: usize) -> Result<()> {
        self.check(tokens, 1)
    }

    /// Checks that a text of `bytes` bytes can be a prompt at all.
    pub(crate) fn check_text(&self, bytes: usize) -> Result<()> {
        self.check_tokens(bytes.div_ceil(self.token_bytes.max(1)))
    }

    /// Checks that a predicted answer is no longer than prompt and answer may be together.
    pub(crate) fn check_prediction(&self, tokens: usize) -> Result<()> {
        if tokens <= self.tokens as usize {
            return Ok(());
        }
        Err(ApiError::Field {
            field: "prediction".to_owned(),
            expected: "no more tokens than prompt and answer may have together",
            found: format!("at least {tokens} tokens, with room for {}", self.tokens),
        })
    }

    /// Checks that a text of `bytes` bytes can be a predicted answer at all.
    pub(crate) fn check_prediction_text(&self, bytes: usize) -> Result<()> {
        self.check_prediction(bytes.div_ceil(self.token_bytes.max(1)))
    }

    /// Returns the size of the longest text that can be a prompt, in bytes.
    pub(crate) fn text_bytes_max(&self) -> usize {
        (self.tokens as usize)
            .saturating_sub(1)
            .saturating_mul(self.token_bytes)
    }

    /// Returns the maximum size of a body in bytes: the longest prompt with every byte escaped, plus room for tools and
    /// for the parts of a conversation that templates leave out.
    pub(crate) fn body_bytes_max(&self) -> usize {
        let prompt = self.text_bytes_max().saturating_mul(ESCAPED_BYTES);
        prompt.saturating_add(BESIDE_BYTES).min(BODY_BYTES_MAX)
    }

    /// Returns the error for a text of more than `bytes` bytes.
    pub(crate) fn too_long(&self, bytes: usize) -> ApiError {
        ApiError::TooLong {
            at_least: (bytes / self.token_bytes.max(1)).saturating_add(1),
            tokens_max: self.tokens,
            bounded_by: self.bounded_by,
        }
    }

    /// Checks that prompt and answer fit.
    pub(crate) fn check(&self, prompt_tokens: usize, answer_tokens: u32) -> Result<()> {
        let at_least = prompt_tokens.saturating_add(answer_tokens as usize);
        if at_least <= self.tokens as usize {
            return Ok(());
        }
        Err(ApiError::TooLong {
            at_least,
            tokens_max: self.tokens,
            bounded_by: self.bounded_by,
        })
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Context => "the model's context",
            Self::KvBudget => "what this server's KV caches may take",
        })
    }
}

/// Length of one byte escaped as JSON: `\u0000`.
const ESCAPED_BYTES: usize = 6;

/// Room for the rest of a body, in bytes. Chosen: the largest schema takes a quarter of it.
const BESIDE_BYTES: usize = 1 << 20;

/// Maximum size of any body, in bytes. Chosen.
const BODY_BYTES_MAX: usize = 8 << 20;
