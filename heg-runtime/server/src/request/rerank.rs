//! A request to `/v1/rerank`, in the form of Cohere and Jina.

use std::time::Duration;

use serde_json::Value;

use super::embeddings::{TEXTS_MAX, class_of_texts, deadline};
use super::{PromptBounds, fields};
use crate::bounded_json::PromptField;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, describe};
use heg_sched::Class;

/// A request for the scores of documents under a query.
#[derive(Debug, PartialEq)]
pub struct RerankRequest {
    /// The query.
    pub query: String,
    /// The documents, at least one.
    pub documents: Vec<String>,
    /// Number of documents in the answer, the best ones; all if absent.
    pub top_n: Option<u32>,
    /// Whether the answer repeats the documents.
    pub returns_documents: bool,
    /// The model, if named.
    pub model: Option<String>,
    /// The priority class.
    pub class: Class,
    /// Time from now after which the scores are worthless.
    pub deadline: Option<Duration>,
    /// The fields of the request that have no effect.
    pub ignored: Vec<&'static str>,
}

impl RerankRequest {
    /// Reads a body; `headers` are fields that it may leave out.
    ///
    /// # Errors
    /// The first thing that is wrong, with the field's name.
    pub fn parse<'a>(
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        bounds: &PromptBounds,
    ) -> Result<Self> {
        let (mut fields, _) = fields(body, headers, bounds, PromptField::Unknown)?;
        let ignored = super::foreign::without_effect(&mut fields);
        let query = fields.text("query")?;
        let documents = fields.list("documents")?;
        let class = class_of_texts(&mut fields)?;
        let request = Self {
            query: query.ok_or(ApiError::Missing { field: "query" })?,
            documents: texts(documents.ok_or(ApiError::Missing { field: "documents" })?)?,
            top_n: fields.count("top_n")?,
            returns_documents: fields.flag("return_documents")?.unwrap_or(false),
            model: fields.text("model")?,
            class,
            deadline: deadline(&mut fields)?,
            ignored,
        };
        fields.end()?;
        Ok(request)
    }
}

/// Returns the texts of documents: each is a text, or an object that has one.
fn texts(documents: Vec<Value>) -> Result<Vec<String>> {
    if documents.is_empty() || documents.len() > TEXTS_MAX {
        return Err(ApiError::Field {
            field: "documents".to_owned(),
            expected: "1 to 2048 documents",
            found: format!("{}", documents.len()),
        });
    }
    let texts = documents.into_iter().enumerate();
    let texts = texts.map(|(at, document)| match document {
        Value::String(text) => Ok(text),
        Value::Object(_) => {
            let mut fields = Fields::of(document, &format!("documents[{at}]"))?;
            let text = fields.needed_text("text")?;
            fields.end()?;
            Ok(text)
        }
        other => Err(ApiError::Field {
            field: format!("documents[{at}]"),
            expected: "a text, or an object with `text`",
            found: describe(&other),
        }),
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Bound;

    const BOUNDS: PromptBounds = PromptBounds {
        tokens: 512,
        bounded_by: Bound::Context,
        token_bytes: 16,
    };

    fn parse(body: &str) -> Result<RerankRequest> {
        RerankRequest::parse(body.as_bytes(), [], &BOUNDS)
    }

    #[test]
    fn documents_are_texts_or_have_one() {
        let request = parse(r#"{"query": "q", "documents": ["a", {"text": "b"}], "user": "u"}"#);
        let expected = RerankRequest {
            query: "q".to_owned(),
            documents: vec!["a".to_owned(), "b".to_owned()],
            top_n: None,
            returns_documents: false,
            model: None,
            class: Class::Proactive,
            deadline: None,
            ignored: vec!["user"],
        };
        assert_eq!(request.unwrap(), expected);
        let request = parse(
            r#"{"query": "q", "documents": ["a"], "top_n": 3, "return_documents": true, "model": "m",
                "priority": "reactive", "deadline_ms": 5}"#,
        );
        let expected = RerankRequest {
            query: "q".to_owned(),
            documents: vec!["a".to_owned()],
            top_n: Some(3),
            returns_documents: true,
            model: Some("m".to_owned()),
            class: Class::Reactive,
            deadline: Some(Duration::from_millis(5)),
            ignored: vec![],
        };
        assert_eq!(request.unwrap(), expected);
    }

    #[test]
    fn refusals_name_the_field() {
        let refused = [
            r#"{"documents": ["a"]}"#,
            r#"{"query": "q"}"#,
            r#"{"query": ["q"], "documents": ["a"]}"#,
            r#"{"query": "q", "documents": "a"}"#,
            r#"{"query": "q", "documents": []}"#,
            r#"{"query": "q", "documents": ["a", [1]]}"#,
            r#"{"query": "q", "documents": [{"image": "a"}]}"#,
            r#"{"query": "q", "documents": [{"text": "a", "title": "b"}]}"#,
            r#"{"query": "q", "documents": ["a"], "top_n": 0}"#,
            r#"{"query": "q", "documents": ["a"], "return_documents": 1}"#,
            r#"{"query": "q", "documents": ["a"], "max_tokens_per_doc": 8}"#,
        ];
        let said = refused.map(|body| format!("{body}: {}\n", parse(body).unwrap_err()));
        insta::assert_snapshot!("refused_rerank", said.concat());
    }
}
