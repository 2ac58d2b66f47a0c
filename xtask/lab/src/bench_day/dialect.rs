//! The requests of a day in each server's words, and the words of its answers.

use heg_sched::Class;
use serde_json::{Value, json};

/// The names by which each server knows its four models.
pub(crate) const CHAT: &str = "chat";
pub(crate) const DIGEST: &str = "digest";
pub(crate) const EMBED: &str = "embed";
pub(crate) const RERANK: &str = "rerank";

/// The way to speak to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `heg serve`
    Heg,
    /// llama.cpp's server, whose own route takes and gives token ids
    LlamaServer,
}

/// A prompt, and the number of tokens of its answer, which does not end earlier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt<'p> {
    pub(crate) model: &'static str,
    pub(crate) ids: &'p [u32],
    pub(crate) tokens: usize,
    pub(crate) class: Class,
}

/// A request: its path and its body.
pub(crate) type Asked = (&'static str, Value);

impl Dialect {
    /// Asks for a stream of token ids.
    pub(crate) fn complete(self, prompt: Prompt<'_>) -> Asked {
        let Prompt {
            model, ids, tokens, ..
        } = prompt;
        let mut body = json!({
            "model": model, "prompt": ids, "stream": true, "ignore_eos": true, "temperature": 0,
        });
        match self {
            Self::Heg => {
                body["max_tokens"] = json!(tokens);
                body["return_token_ids"] = json!(true);
                self.classed(&mut body, prompt.class);
                ("/v1/completions", body)
            }
            Self::LlamaServer => {
                body["n_predict"] = json!(tokens);
                body["return_tokens"] = json!(true);
                body["cache_prompt"] = json!(true);
                ("/completion", body)
            }
        }
    }

    /// Asks for the vectors of texts, in base64 as OpenAI's own clients do: floats in decimal cost both sides more than short
    /// texts cost the model.
    pub(crate) fn embed(self, texts: &[String], class: Class) -> Asked {
        let mut body = json!({"model": EMBED, "input": texts, "encoding_format": "base64"});
        self.classed(&mut body, class);
        ("/v1/embeddings", body)
    }

    /// Asks for the scores of documents under a query, for which a person waits.
    pub(crate) fn rerank(self, query: &str, documents: &[String]) -> Asked {
        let mut body = json!({"model": RERANK, "query": query, "documents": documents});
        self.classed(&mut body, Class::Reactive);
        ("/v1/rerank", body)
    }

    /// Names the class to a server that has some.
    fn classed(self, body: &mut Value, class: Class) {
        if self == Self::Heg {
            body["priority"] = json!(match class {
                Class::Reactive => "reactive",
                Class::Proactive => "proactive",
            });
        }
    }

    /// The token ids in the data of an event of a stream; an error is the server's own.
    pub(crate) fn ids(self, data: &str) -> Result<Vec<u32>, String> {
        if data == "[DONE]" {
            return Ok(Vec::new());
        }
        let event: Value =
            serde_json::from_str(data).map_err(|_| format!("no JSON in an event: {data}"))?;
        if let Some(error) = event.get("error") {
            return Err(error["message"].as_str().unwrap_or(data).to_owned());
        }
        let listed = match self {
            Self::Heg => &event["choices"][0]["token_ids"],
            // Its last event repeats none.
            Self::LlamaServer if event["stop"] == true => &Value::Null,
            Self::LlamaServer => &event["tokens"],
        };
        let listed = listed.as_array().map_or(&[][..], Vec::as_slice);
        Ok(listed
            .iter()
            .filter_map(Value::as_u64)
            .map(|id| id as u32)
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_in_the_servers_words() {
        let prompt = Prompt {
            model: DIGEST,
            ids: &[12, 13],
            tokens: 7,
            class: Class::Proactive,
        };
        let texts = ["a".to_owned()];
        let asked = [Dialect::Heg, Dialect::LlamaServer].map(|dialect| {
            let all = [
                dialect.complete(prompt),
                dialect.embed(&texts, Class::Proactive),
                dialect.rerank("q", &texts),
            ];
            all.map(|(path, body)| format!("{path} {body}\n")).concat()
        });
        insta::assert_snapshot!(asked.concat());
    }

    #[test]
    fn ids_are_read_and_errors_said() {
        let heg = r#"{"choices":[{"text":"a","token_ids":[5]}]}"#;
        let llama = r#"{"content":"a","tokens":[5,6],"stop":false}"#;
        assert_eq!(Dialect::Heg.ids(heg), Ok(vec![5]));
        assert_eq!(Dialect::LlamaServer.ids(llama), Ok(vec![5, 6]));
        assert_eq!(
            Dialect::LlamaServer.ids(r#"{"tokens":[5],"stop":true}"#),
            Ok(vec![])
        );
        assert_eq!(Dialect::Heg.ids("[DONE]"), Ok(vec![]));
        let refused = r#"{"error":{"message":"no room"}}"#;
        assert_eq!(Dialect::Heg.ids(refused), Err("no room".to_owned()));
    }
}
