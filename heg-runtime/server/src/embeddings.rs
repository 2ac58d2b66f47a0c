//! `/v1/embeddings`: the vectors of texts as one JSON object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heg_confine::Wait;
use serde::Serialize;
use serde_json::json;

use super::State;
use super::error::{ApiError, Result};
use super::request::{EmbeddingsRequest, Encoding};
use super::sending::Pieces;
use super::served::ServedModel;
use super::text_metrics::TextRoute;
use super::texts::{AboutTexts, Terms, TextTokens};
use heg_runtime::engine::{AnswerKind, to_unit};

impl AboutTexts for EmbeddingsRequest {
    const ROUTE: TextRoute = TextRoute::Embeddings;
    const KIND: AnswerKind = AnswerKind::Vector;

    fn parse<'a>(
        state: &State,
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self> {
        Self::parse(body, headers, &state.models.bounds())
    }

    fn terms(&self) -> Terms<'_> {
        Terms {
            model: self.model.as_deref(),
            class: self.class,
            deadline: self.deadline,
            ignored: &self.ignored,
        }
    }

    fn texts(&mut self, served: &ServedModel, wait: Wait<'_>) -> Result<Vec<TextTokens>> {
        let width = served.engine.manifest().model.hidden;
        if let Some(found) = self.dimensions.filter(|asked| *asked > width) {
            return Err(ApiError::Field {
                field: "dimensions".to_owned(),
                expected: "no more than the model's vectors have",
                found: format!("{found}, and they have {width}"),
            });
        }
        let texts = served.texts_tokens(std::mem::take(&mut self.input), wait);
        texts.map_err(|(_, error)| error)
    }

    /// Vectors are kept until the last one is there, and then written as text.
    fn kept_bytes(&self, served: &ServedModel, texts: usize) -> usize {
        let width = served.engine.manifest().model.hidden as usize;
        let vector_bytes = width.saturating_mul(size_of::<f32>() + NUMBER_BYTES);
        vector_bytes.saturating_mul(texts)
    }

    fn written_bytes(&self, vectors: &[Vec<f32>]) -> usize {
        vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES
    }

    /// Vectors are cut to the dimensions that were asked for.
    fn write(self, model: &str, vectors: Vec<Vec<f32>>, tokens: usize) -> Pieces {
        let mut text = Pieces::default();
        text.add(br#"{"object":"list","data":["#);
        for (index, mut vector) in vectors.into_iter().enumerate() {
            if let Some(dimensions) = self.dimensions {
                vector.truncate(dimensions as usize);
                to_unit(&mut vector);
            }
            let embedding = match self.encoding {
                Encoding::Float => Written::Numbers(vector),
                Encoding::Base64 => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    Written::Text(STANDARD.encode(bytes))
                }
            };
            if index > 0 {
                text.add(b",");
            }
            text.add_json(&Embedding {
                object: "embedding",
                index,
                embedding,
            });
        }
        text.add(b"],\"model\":");
        text.add_json(&model);
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        text.add(b",\"usage\":");
        text.add_json(&usage);
        text.add(b"}");
        text
    }
}

/// An entry of the answer.
#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Written,
}

/// A vector as it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Written {
    Numbers(Vec<f32>),
    Text(String),
}

/// Size of an element as text, in bytes: the shortest digits that give the same f32, sign and comma.
const NUMBER_BYTES: usize = 14;
