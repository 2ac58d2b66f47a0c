//! The prompt that is sent in front of its completion if the request sets `echo`.

use std::sync::Arc;

use super::error::Result;
use super::log_probs::ScoredToken;
use heg_runtime::RuntimeError;
use heg_text::{TextStream, TokenLogProbs, Tokenizer};

/// A prompt to send back.
pub(super) struct Echo {
    pub(super) prompt: Vec<u32>,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    /// Log probabilities of all tokens but the first, if they are asked for.
    pub(super) log_probs: Option<Vec<TokenLogProbs>>,
}

/// An echoed prompt as text.
#[derive(Debug, Default)]
pub(super) struct Echoed {
    pub(super) text: String,
    /// The prompt's tokens with log probabilities, if they are asked for.
    pub(super) tokens: Vec<ScoredToken>,
}

impl Echo {
    /// Returns the approximate memory of the prompt as text, in bytes.
    pub(super) fn text_bytes(&self) -> usize {
        let scored = self.log_probs.as_ref().map_or(0, Vec::len);
        self.prompt.len() * TOKEN_TEXT_BYTES + scored * SCORED_TEXT_BYTES
    }

    /// Decodes the prompt's tokens. Slow for a long prompt.
    pub(super) fn read(self) -> Result<Echoed> {
        let Self {
            prompt,
            tokenizer,
            log_probs,
        } = self;
        let mut stream = tokenizer.map(TextStream::new);
        let (mut text, mut chars) = (String::new(), 0);
        let mut offsets = Vec::with_capacity(prompt.len());
        for &token in &prompt {
            offsets.push(chars);
            if let Some(stream) = &mut stream {
                let piece = stream.push(token).map_err(RuntimeError::from)?;
                let piece = piece.unwrap_or_default();
                chars += piece.chars().count();
                text.push_str(&piece);
            }
        }
        if let Some(stream) = &mut stream {
            text.extend(stream.finish().map_err(RuntimeError::from)?);
        }
        let tokens = log_probs.map_or(Vec::new(), |log_probs| {
            let known = log_probs.into_iter().map(|all| Some(Box::new(all)));
            let known = [None].into_iter().chain(known);
            let token = |((&id, offset), log_probs)| ScoredToken {
                id,
                log_probs,
                offset,
            };
            prompt.iter().zip(offsets).zip(known).map(token).collect()
        });
        Ok(Echoed { text, tokens })
    }
}

/// Size of a token's text as JSON, in bytes. Chosen.
pub(super) const TOKEN_TEXT_BYTES: usize = 8;

/// Size of a token's log probabilities as JSON, in bytes. Chosen: several alternatives.
pub(super) const SCORED_TEXT_BYTES: usize = 256;
