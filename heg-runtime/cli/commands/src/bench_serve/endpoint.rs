//! The address and the API dialect of a server, which are all the differences between servers.

use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use heg_sched::Class;
use heg_workload::{Prompt, ReplayRequest, ReplyEvent};
use hyper::Uri;
use serde_json::{Value, json};

use crate::failure::input;

/// The dialect of the completions API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Dialect {
    /// `/v1/completions` as OpenAI has it, with `ignore_eos`: also vLLM and OpenVINO Model Server
    Openai,
    /// llama.cpp's own `/completion`, which says how many tokens an event has
    LlamaServer,
}

/// Whether requests name their priority class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PriorityField {
    /// `"priority": "reactive"` or `"proactive"`
    On,
    /// No such field, for servers that refuse unknown fields
    Off,
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// `host:port`.
    Tcp(String),
    /// A Unix socket or named pipe.
    Local(PathBuf),
}

/// A server.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    /// The path before `/completions`, e.g. `/v1`.
    base: String,
    pub(super) dialect: Dialect,
    priority: PriorityField,
    /// The model that requests name, if any.
    model: Option<String>,
}

impl Endpoint {
    /// Creates the endpoint of a server at a URL, `http://host[:port][/base]`, or behind a socket or pipe; the base is `/v1`
    /// unless given.
    pub(super) fn new(
        url: &str,
        socket: Option<PathBuf>,
        dialect: Dialect,
        priority: PriorityField,
        model: Option<String>,
    ) -> anyhow::Result<Self> {
        let refuse = || input(format!("`{url}` is no URL of the form http://host:port"));
        let uri: Uri = url.parse().map_err(|_| refuse())?;
        let host = uri.host().with_context(refuse)?;
        if uri.scheme_str() != Some("http") {
            return Err(refuse());
        }
        let base = uri.path().trim_end_matches('/');
        Ok(Self {
            address: match socket {
                Some(path) => Address::Local(path),
                None => Address::Tcp(format!("{host}:{}", uri.port_u16().unwrap_or(80))),
            },
            base: if base.is_empty() { "/v1" } else { base }.to_owned(),
            dialect,
            priority,
            model,
        })
    }

    /// Returns the path of completions.
    pub(super) fn path(&self) -> String {
        match self.dialect {
            Dialect::Openai => format!("{}/completions", self.base),
            Dialect::LlamaServer => "/completion".to_owned(),
        }
    }

    /// Returns the body of a request: a stream of exactly the requested number of tokens, whatever they are.
    pub(super) fn body(&self, request: &ReplayRequest) -> Value {
        let prompt = match &request.prompt {
            Prompt::Ids(ids) => json!(ids),
            Prompt::Text(text) => json!(text),
        };
        let mut body = json!({
            "prompt": prompt,
            "stream": true,
            "ignore_eos": true,
            "temperature": 0,
        });
        match self.dialect {
            Dialect::Openai => {
                body["max_tokens"] = json!(request.output_tokens);
                body["stream_options"] = json!({ "include_usage": true });
            }
            Dialect::LlamaServer => {
                body["n_predict"] = json!(request.output_tokens);
                // Incomplete characters are held back; their tokens come with the next event.
                body["return_tokens"] = json!(true);
            }
        }
        if let Some(model) = &self.model {
            body["model"] = json!(model);
        }
        if self.priority == PriorityField::On {
            body["priority"] = json!(match request.class {
                Class::Reactive => "reactive",
                Class::Proactive => "proactive",
            });
        }
        body
    }

    /// Parses the data of an event; an error is the server's own.
    pub(super) fn event(&self, data: &str) -> Result<ReplyEvent, String> {
        match self.dialect {
            Dialect::Openai => ReplyEvent::of_openai(data),
            Dialect::LlamaServer => ReplyEvent::of_llama_server(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str, dialect: Dialect, priority: PriorityField) -> anyhow::Result<Endpoint> {
        Endpoint::new(url, None, dialect, priority, None)
    }

    fn asked(dialect: Dialect, priority: PriorityField) -> String {
        let endpoint = endpoint("http://localhost:8080", dialect, priority).unwrap();
        let request = ReplayRequest {
            at_ms: 0,
            class: Class::Proactive,
            prompt: Prompt::Ids(vec![12, 13]),
            prompt_tokens: 2,
            output_tokens: 7,
        };
        format!("{} {}", endpoint.path(), endpoint.body(&request))
    }

    #[test]
    fn requests_are_in_the_servers_words() {
        insta::assert_snapshot!(
            asked(Dialect::Openai, PriorityField::On),
            @r#"/v1/completions {"prompt":[12,13],"stream":true,"ignore_eos":true,"temperature":0,"max_tokens":7,"stream_options":{"include_usage":true},"priority":"proactive"}"#
        );
        insta::assert_snapshot!(
            asked(Dialect::LlamaServer, PriorityField::Off),
            @r#"/completion {"prompt":[12,13],"stream":true,"ignore_eos":true,"temperature":0,"n_predict":7,"return_tokens":true}"#
        );
    }

    #[test]
    fn urls_are_checked_and_may_have_a_base() {
        let at = |url| endpoint(url, Dialect::Openai, PriorityField::Off);
        let other = at("http://localhost/v3/").unwrap();
        assert_eq!(other.path(), "/v3/completions");
        assert_eq!(other.address, Address::Tcp("localhost:80".to_owned()));
        for wrong in ["https://localhost", "localhost:8080", "http://", "x y"] {
            let message = at(wrong).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("`{wrong}` is no URL")),
                "{message}"
            );
        }
    }

    #[test]
    fn events_bring_tokens_counts_and_errors() {
        let openai = endpoint("http://h", Dialect::Openai, PriorityField::Off).unwrap();
        let llama = endpoint("http://h", Dialect::LlamaServer, PriorityField::Off).unwrap();
        let event = |tokens, total| Ok(ReplyEvent { tokens, total });
        let cases = [
            (
                &openai,
                r#"{"choices":[{"text":"","finish_reason":null}]}"#,
                event(1, None),
            ),
            (
                &openai,
                r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
                event(0, None),
            ),
            (
                &openai,
                r#"{"choices":[],"usage":{"completion_tokens":9}}"#,
                event(0, Some(9)),
            ),
            (&openai, "[DONE]", event(0, None)),
            (
                &openai,
                r#"{"error":{"message":"no room"}}"#,
                Err("no room".to_owned()),
            ),
            (
                &openai,
                "<html>",
                Err("no JSON in an event: <html>".to_owned()),
            ),
            (
                &llama,
                r#"{"content":"ab","tokens":[1,2],"stop":false}"#,
                event(2, None),
            ),
            (&llama, r#"{"content":"a","stop":false}"#, event(1, None)),
            (
                &llama,
                r#"{"content":"","tokens":[],"stop":true,"tokens_predicted":3}"#,
                event(0, Some(3)),
            ),
        ];
        for (endpoint, data, expected) in cases {
            assert_eq!(endpoint.event(data), expected, "{data}");
        }
    }
}
