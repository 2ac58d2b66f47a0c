//! The prompt in front of its completion, where `echo` asks for it.

use std::sync::Arc;

use super::error::Result;
use super::log_probs::ScoredToken;
use heg_runtime::RuntimeError;
use heg_text::{TextStream, TokenLogProbs, Tokenizer};

/// A prompt that comes back.
pub(super) struct Echo {
    pub(super) prompt: Vec<u32>,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
}

/// A prompt as text.
#[derive(Debug, Default)]
pub(super) struct Echoed {
    pub(super) text: String,
    /// Its tokens with log probabilities, where those are asked for.
    pub(super) tokens: Vec<ScoredToken>,
}

impl Echo {
    /// The prompt as its tokens decode. `log_probs` are those of all tokens but the first, if they are asked for.
    pub(super) fn read(self, log_probs: Option<Vec<TokenLogProbs>>) -> Result<Echoed> {
        let Self { prompt, tokenizer } = self;
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
