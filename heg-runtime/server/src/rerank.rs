//! `/v1/rerank`: documents by how well they answer a query, the best first.

use std::cmp::Reverse;

use heg_confine::Wait;
use serde::Serialize;
use serde_json::json;

use super::State;
use super::error::Result;
use super::request::RerankRequest;
use super::sending::Pieces;
use super::served::ServedModel;
use super::text_metrics::TextRoute;
use super::texts::{AboutTexts, Terms, TextTokens};
use heg_runtime::engine::AnswerKind;

/// A request for the order of documents.
pub(super) struct Ranking {
    /// Name of the answer.
    id: String,
    asked: RerankRequest,
    /// The document of each pair, in the order in which pairs run.
    order: Vec<usize>,
}

impl AboutTexts for Ranking {
    const ROUTE: TextRoute = TextRoute::Rerank;
    const KIND: AnswerKind = AnswerKind::Score;

    fn parse<'a>(
        state: &State,
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self> {
        Ok(Self {
            asked: RerankRequest::parse(body, headers, &state.models.bounds())?,
            id: state.new_id("rerank-"),
            order: Vec::new(),
        })
    }

    fn terms(&self) -> Terms<'_> {
        Terms {
            model: self.asked.model.as_deref(),
            class: self.asked.class,
            deadline: self.asked.deadline,
            ignored: &self.asked.ignored,
        }
    }

    /// Each document with the query, the longest first: pairs that run together are about as long.
    fn texts(&mut self, served: &ServedModel, wait: Wait<'_>) -> Result<Vec<TextTokens>> {
        let asked = &mut self.asked;
        // Documents that the answer does not repeat are not kept.
        let documents = match asked.returns_documents {
            true => asked.documents.clone(),
            false => asked.documents.iter_mut().map(std::mem::take).collect(),
        };
        let pairs = served.pairs_tokens(&asked.query, documents, wait);
        let pairs = pairs.map_err(|(index, error)| error.of_document(index))?;
        let mut pairs: Vec<(usize, TextTokens)> = pairs.into_iter().enumerate().collect();
        pairs.sort_by_key(|(_, pair)| Reverse(pair.tokens.len()));
        let (order, pairs) = pairs.into_iter().unzip();
        self.order = order;
        Ok(pairs)
    }

    fn kept_bytes(&self, _: &ServedModel, _: usize) -> usize {
        self.answer_bytes()
    }

    fn written_bytes(&self, _: &[Vec<f32>]) -> usize {
        self.answer_bytes()
    }

    /// The documents with the highest scores, and of equal ones the first.
    fn write(self, model: &str, scores: Vec<Vec<f32>>, tokens: usize) -> Pieces {
        // A score is a vector of one element.
        let scores = scores.iter().map(|score| score.first().copied());
        let scores = scores.map(|score| score.unwrap_or(f32::NAN));
        let mut scores: Vec<(usize, f32)> = self.order.iter().copied().zip(scores).collect();
        scores.sort_by(|(at, a), (other, b)| b.total_cmp(a).then(at.cmp(other)));
        scores.truncate(self.asked.top_n.map_or(usize::MAX, |most| most as usize));
        let mut text = Pieces::default();
        text.add(b"{\"id\":");
        text.add_json(&self.id);
        text.add(b",\"object\":\"list\",\"model\":");
        text.add_json(&model);
        text.add(b",\"results\":[");
        for (place, (index, relevance_score)) in scores.into_iter().enumerate() {
            let document = self.asked.documents.get(index);
            let document = document.filter(|_| self.asked.returns_documents);
            if place > 0 {
                text.add(b",");
            }
            text.add_json(&Ranked {
                index,
                relevance_score,
                document: document.map(|text| RankedText { text }),
            });
        }
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        text.add(b"],\"usage\":");
        text.add_json(&usage);
        text.add(b"}");
        text
    }
}

impl Ranking {
    /// About the size of the answer, in bytes, with the documents that it repeats.
    fn answer_bytes(&self) -> usize {
        let documents = &self.asked.documents;
        let bytes = documents.iter().map(String::len);
        let bytes = bytes.fold(0, usize::saturating_add);
        bytes.saturating_add(documents.len().saturating_mul(RESULT_BYTES))
    }
}

/// An entry of the answer.
#[derive(Serialize)]
struct Ranked<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankedText<'a>>,
}

/// A document that the answer repeats.
#[derive(Serialize)]
struct RankedText<'a> {
    text: &'a str,
}

/// Size of an entry as text without its document, in bytes.
const RESULT_BYTES: usize = 80;
