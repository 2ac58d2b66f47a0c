//! The texts that all answers to one request are drafted from, built once per request.

use std::sync::Arc;

use crate::automaton::Automaton;
use crate::history::REREAD;

/// The prompt of a request and the answer that its client predicts, as automata.
///
/// Building one takes time and memory in proportion to the tokens: a millisecond and half a megabyte for ten thousand.
#[derive(Debug, Clone)]
pub struct RequestTexts {
    pub(crate) context: Automaton,
    /// The latest tokens of the prompt.
    pub(crate) recent: Vec<u32>,
    pub(crate) prediction: Option<Arc<Predicted>>,
}

/// An answer that the client predicts.
#[derive(Debug)]
pub(crate) struct Predicted {
    pub(crate) tokens: Arc<[u32]>,
    pub(crate) texts: Automaton,
}

impl RequestTexts {
    /// Builds the texts for one answer to `prompt`. `prediction` is the predicted answer from its first token on;
    /// empty: none.
    pub fn new(prompt: &[u32], prediction: &[u32]) -> Self {
        let mut context = Automaton::default();
        for token in prompt {
            context.push(*token);
        }
        let prediction = (!prediction.is_empty()).then(|| Arc::new(Predicted::new(prediction)));
        Self {
            context,
            recent: prompt[prompt.len().saturating_sub(REREAD)..].to_vec(),
            prediction,
        }
    }

    /// Lets clones share the prompt's memory, for several answers to one request.
    pub fn shared(mut self) -> Self {
        self.context.share();
        self
    }

    /// Memory of the texts, in bytes. A clone of shared texts adds next to nothing.
    pub fn bytes(&self) -> usize {
        let prediction = self.prediction.as_ref();
        self.context.bytes() + prediction.map_or(0, |predicted| predicted.bytes())
    }
}

impl Predicted {
    fn new(tokens: &[u32]) -> Self {
        let mut texts = Automaton::default();
        for token in tokens {
            texts.push(*token);
        }
        texts.end_text();
        texts.shrink();
        Self {
            tokens: tokens.into(),
            texts,
        }
    }

    fn bytes(&self) -> usize {
        self.texts.bytes() + size_of_val(&*self.tokens)
    }
}
