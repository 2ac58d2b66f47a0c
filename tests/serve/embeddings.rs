//! Vectors of texts: of a model that gives them, and asked of one that does not.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heg_runtime::engine::EngineOptions;
use heg_server::ServedModel;
use heg_spec::{WeightForm, shipped};
use heg_tests::{Workbench, fixture, golden};
use serde_json::{Value, json};

use crate::clients::{run_on_or_skip, said};
use crate::host::{Host, served_by};

/// Returns the bundle of a tiny encoder, compiled once.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let workbench = Workbench::new().unwrap();
        let f32 = |spec: &mut heg_spec::ModelSpec| spec.weights = WeightForm::F32;
        let compiled = workbench.compile(&fixture("golden/bert"), "tiny-encoder", f32);
        let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-tiny-encoder.heg");
        std::fs::copy(compiled.unwrap().0, &bundle).unwrap();
        bundle
    })
}

pub(crate) fn encoder() -> ServedModel {
    let policy = shipped::policy("agent-xpu-one-device").unwrap();
    served_by(bundle(), "host-cpu-f32", policy, EngineOptions::default())
}

fn embed(host: &Host, body: &Value) -> Value {
    let reply = host.post("/v1/embeddings", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn numbers(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn vectors_are_those_of_the_reference_in_both_encodings() {
    let host = Host::serving(encoder, |_| ());
    let cases = golden::family("bert").unwrap();
    let input: Vec<&[u32]> = cases.iter().map(|case| &*case.input_ids).collect();
    let floats = embed(&host, &json!({"input": input}));
    let packed = embed(&host, &json!({"input": input, "encoding_format": "base64"}));
    let tokens: usize = input.iter().map(|ids| ids.len()).sum();
    assert_eq!(
        floats["usage"],
        json!({"prompt_tokens": tokens, "total_tokens": tokens})
    );
    for (at, case) in cases.iter().enumerate() {
        let vector = numbers(&floats["data"][at]["embedding"]);
        let worst = vector.iter().zip(&case.vector).map(|(a, b)| (a - b).abs());
        assert!(worst.fold(0.0, f32::max) < 2e-6, "case {at}");
        let text = packed["data"][at]["embedding"].as_str().unwrap();
        let bytes = STANDARD.decode(text).unwrap();
        let (chunks, _) = bytes.as_chunks::<4>();
        let unpacked: Vec<f32> = chunks
            .iter()
            .map(|four| f32::from_le_bytes(*four))
            .collect();
        assert_eq!(unpacked, vector, "case {at}");
    }
}

#[test]
fn many_texts_come_back_in_their_order() {
    let host = Host::serving(encoder, |_| ());
    let texts: Vec<String> = (0..150)
        .map(|number| {
            format!(
                "the cat {number} sat on the mat {}",
                "and it ".repeat(number % 9)
            )
        })
        .collect();
    let all = embed(&host, &json!({"input": texts}));
    for at in [0, 40, 149] {
        let alone = embed(&host, &json!({"input": texts[at], "priority": "reactive"}));
        assert_eq!(all["data"][at]["index"], at);
        assert_eq!(all["data"][at]["embedding"], alone["data"][0]["embedding"]);
    }
}

#[test]
fn each_model_has_its_routes() {
    let host = Host::serving(encoder, |_| ());
    let message = json!([{"role": "user", "content": "Hi"}]);
    let asked = [
        ("/v1/chat/completions", json!({"messages": message})),
        ("/v1/completions", json!({"prompt": "Hi"})),
        (
            "/v1/messages",
            json!({"model": "bert", "messages": message, "max_tokens": 3}),
        ),
        ("/v1/responses", json!({"input": "Hi"})),
    ];
    for (path, body) in asked {
        let reply = host.post_with(path, "anthropic-version: 2023-06-01\r\n", &body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        assert!(
            reply.body.contains("use /v1/embeddings"),
            "{path}: {}",
            reply.body
        );
    }
    let agent = Host::new();
    let reply = agent.post("/v1/embeddings", &json!({"input": "Hi"}));
    assert_eq!(reply.status, 400);
    insta::assert_snapshot!(reply.body);
    let reply =
        agent.send(b"GET /v1/embeddings HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
}

#[test]
fn the_client_of_openai_gets_vectors() {
    let test = "the_client_of_openai_gets_vectors";
    let Some(output) = run_on_or_skip(test, "embeddings_client.py", "/v1", encoder) else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}
