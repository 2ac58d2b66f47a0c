//! Log probabilities in the formats of OpenAI's two interfaces.
//!
//! They are written straight from numbers to text: as JSON values they would take twenty times the memory.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::answer::ApiKind;
use heg_text::{LogProb, TokenLogProbs, Tokenizer};

/// A token of an answer or an echoed prompt, with log probabilities.
#[derive(Debug, Clone)]
pub(super) struct ScoredToken {
    pub(super) id: u32,
    /// `None` for the first token of a prompt, which nothing predicts.
    pub(super) log_probs: Option<Box<TokenLogProbs>>,
    /// Number of characters of text before the token.
    pub(super) offset: usize,
}

impl ScoredToken {
    /// Moves the token back by a number of characters.
    pub(super) fn behind(mut self, chars: usize) -> Self {
        self.offset += chars;
        self
    }
}

/// The field `logprobs` of a choice.
pub(super) struct LogProbsField<'a> {
    pub(super) api: ApiKind,
    pub(super) tokenizer: Option<&'a Tokenizer>,
    pub(super) tokens: Vec<ScoredToken>,
}

impl LogProbsField<'_> {
    fn named(&self, token: u32) -> Named {
        let bytes = self.tokenizer.and_then(|all| all.token_bytes(token));
        Named {
            text: match &bytes {
                Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                // vLLM's notation for tokens that have no text.
                None => format!("token_id:{token}"),
            },
            bytes,
        }
    }

    /// Writes a token in the form of the chat interface, without alternatives.
    fn in_chat<S: Serializer>(
        &self,
        probability: LogProb,
        fields: usize,
        serializer: S,
    ) -> Result<S::SerializeMap, S::Error> {
        let Named { text, bytes } = self.named(probability.token);
        let mut map = serializer.serialize_map(Some(fields))?;
        map.serialize_entry("token", &text)?;
        map.serialize_entry("logprob", &number(probability))?;
        map.serialize_entry("bytes", &bytes)?;
        Ok(map)
    }
}

/// The name of a token in an answer.
struct Named {
    text: String,
    /// The token's bytes; `None` for ids that the tokenizer does not have.
    bytes: Option<Vec<u8>>,
}

impl Serialize for LogProbsField<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tokens = || self.tokens.iter();
        let mut map = serializer.serialize_map(None)?;
        match self.api {
            ApiKind::Chat => {
                let content = || tokens().map(|token| ChatToken(self, token));
                map.serialize_entry("content", &List(content))?;
                map.serialize_entry("refusal", &())?;
            }
            ApiKind::Completion => {
                let texts = || tokens().map(|token| self.named(token.id).text);
                let chosen = || tokens().map(|token| Some(number(token.log_probs.as_ref()?.token)));
                let top = || tokens().map(|token| Some(Top(self, token.log_probs.as_deref()?)));
                let offsets = || tokens().map(|token| token.offset);
                map.serialize_entry("tokens", &List(texts))?;
                map.serialize_entry("token_logprobs", &List(chosen))?;
                map.serialize_entry("top_logprobs", &List(top))?;
                map.serialize_entry("text_offset", &List(offsets))?;
            }
        }
        map.end()
    }
}

/// A list that is generated while it is written.
struct List<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for List<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

/// A token of the chat interface.
struct ChatToken<'a>(&'a LogProbsField<'a>, &'a ScoredToken);

impl Serialize for ChatToken<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(field, token) = self;
        let top = token.log_probs.as_ref().map_or(&[][..], |all| &all.top);
        let probability = token.log_probs.as_ref().map_or(
            LogProb {
                token: token.id,
                log_probability: f64::NEG_INFINITY,
            },
            |all| all.token,
        );
        let mut map = field.in_chat(probability, 4, serializer)?;
        let top = || top.iter().map(|&probability| TopToken(field, probability));
        map.serialize_entry("top_logprobs", &List(top))?;
        map.end()
    }
}

/// An alternative in the chat interface.
struct TopToken<'a>(&'a LogProbsField<'a>, LogProb);

impl Serialize for TopToken<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(field, probability) = self;
        field.in_chat(*probability, 3, serializer)?.end()
    }
}

/// The alternatives in the completion interface, by text, with the token itself.
struct Top<'a>(&'a LogProbsField<'a>, &'a TokenLogProbs);

impl Serialize for Top<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(field, all) = self;
        let mut written: Vec<(String, f32)> = Vec::with_capacity(all.top.len() + 1);
        // Several tokens may have the same text, and JSON allows each name once: the most likely token wins.
        for &probability in all.top.iter().chain([&all.token]) {
            let text = field.named(probability.token).text;
            if written.iter().all(|(other, _)| *other != text) {
                written.push((text, number(probability)));
            }
        }
        serializer.collect_map(written)
    }
}

/// Returns a log probability as JSON can hold it: -9999 for negative infinity, as OpenAI writes it.
fn number(probability: LogProb) -> f32 {
    (probability.log_probability as f32).max(IMPOSSIBLE)
}

/// OpenAI's log probability of a practically impossible token.
const IMPOSSIBLE: f32 = -9999.0;

#[cfg(test)]
mod tests {
    use heg_text::log_probabilities;

    use super::*;

    fn written(api: ApiKind) -> String {
        let logits = [0.0, f32::NEG_INFINITY, 2.0f32.ln(), 0.0];
        let token = |id, top| ScoredToken {
            id,
            log_probs: Some(Box::new(log_probabilities(&logits, id, top))),
            offset: id as usize,
        };
        let first = ScoredToken {
            id: 7,
            log_probs: None,
            offset: 0,
        };
        let tokens = match api {
            ApiKind::Chat => vec![token(0, 0), token(1, 2)],
            ApiKind::Completion => vec![first, token(0, 1), token(1, 2)],
        };
        let field = LogProbsField {
            api,
            tokenizer: None,
            tokens,
        };
        serde_json::to_string_pretty(&field).unwrap()
    }

    #[test]
    fn both_interfaces_have_their_form() {
        insta::assert_snapshot!("chat", written(ApiKind::Chat));
        insta::assert_snapshot!("completion", written(ApiKind::Completion));
    }
}
