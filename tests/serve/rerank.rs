//! Scores of documents: of a model that gives them, beside others, and asked of one that does not.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use heg_runtime::engine::EngineOptions;
use heg_server::{Models, ServedModel};
use heg_spec::{WeightForm, shipped};
use heg_tests::{Workbench, fixture};
use serde_json::{Value, json};

use crate::embeddings::encoder;
use crate::host::{Host, exact, served_by};

/// Returns the bundle of a tiny reranker, compiled once.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let workbench = Workbench::new().unwrap();
        let f32 = |spec: &mut heg_spec::ModelSpec| spec.weights = WeightForm::F32;
        let compiled = workbench.compile(&fixture("golden/bert_reranker"), "tiny-reranker", f32);
        let bundle = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-tiny-reranker.heg");
        std::fs::copy(compiled.unwrap().0, &bundle).unwrap();
        bundle
    })
}

fn reranker() -> ServedModel {
    let policy = shipped::policy("agent-xpu-one-device").unwrap();
    served_by(bundle(), "host-cpu-f32", policy, EngineOptions::default())
}

fn rank(host: &Host, body: &Value) -> Value {
    let reply = host.post("/v1/rerank", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

/// The scores of an answer, by the index of their document.
fn scores(answer: &Value) -> Vec<f64> {
    let results = answer["results"].as_array().unwrap();
    let mut scores: Vec<(u64, f64)> = results
        .iter()
        .map(|result| {
            let index = result["index"].as_u64().unwrap();
            (index, result["relevance_score"].as_f64().unwrap())
        })
        .collect();
    scores.sort_by_key(|(index, _)| *index);
    scores.into_iter().map(|(_, score)| score).collect()
}

const DOCUMENTS: [&str; 5] = [
    "the cat sat on the mat",
    "it will rain in oslo tomorrow",
    "an example sentence",
    "the dog and the cat",
    "",
];

#[test]
fn documents_come_back_with_the_best_first() {
    let host = Host::serving(reranker, |_| ());
    let query = "will it rain in oslo?";
    let all = rank(&host, &json!({"query": query, "documents": DOCUMENTS}));
    let results = all["results"].as_array().unwrap();
    assert_eq!(results.len(), DOCUMENTS.len());
    let order = results.iter().map(|it| it["relevance_score"].as_f64());
    assert!(order.is_sorted_by(|a, b| a >= b), "{all}");
    assert!(
        results
            .iter()
            .all(|result| result.get("document").is_none())
    );
    assert_eq!(all["model"], "bert_reranker");
    assert!(all["id"].as_str().unwrap().starts_with("rerank-"));
    let scores = scores(&all);
    // Each alone, as an object and in the other class, has the same score.
    let mut tokens = 0;
    for (document, score) in DOCUMENTS.iter().zip(&scores) {
        let document = json!([{"text": document}]);
        let body = json!({"query": query, "documents": document, "priority": "reactive"});
        let alone = rank(&host, &body);
        assert_eq!(alone["results"][0]["relevance_score"], *score);
        tokens += alone["usage"]["prompt_tokens"].as_u64().unwrap();
    }
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    assert_eq!(all["usage"], usage);
    // `[CLS]`, six words of the query and `?`, `[SEP]`, and `[SEP]` behind no document.
    let body = json!({"query": query, "documents": [""]});
    assert_eq!(rank(&host, &body)["usage"]["prompt_tokens"], 9);
}

#[test]
fn the_best_documents_are_repeated_where_they_are_asked_for() {
    let host = Host::serving(reranker, |_| ());
    let all = rank(&host, &json!({"query": "rain", "documents": DOCUMENTS}));
    let body =
        json!({"query": "rain", "documents": DOCUMENTS, "top_n": 2, "return_documents": true});
    for path in ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"] {
        let best = host.post(path, &body).json();
        let results = best["results"].as_array().unwrap();
        assert_eq!(results.len(), 2, "{path}");
        for (result, expected) in results.iter().zip(all["results"].as_array().unwrap()) {
            assert_eq!(result["index"], expected["index"]);
            assert_eq!(result["relevance_score"], expected["relevance_score"]);
            let index = result["index"].as_u64().unwrap() as usize;
            assert_eq!(result["document"], json!({"text": DOCUMENTS[index]}));
        }
    }
    let body = json!({"query": "rain", "documents": ["a"], "top_n": 9});
    assert_eq!(rank(&host, &body)["results"].as_array().unwrap().len(), 1);
}

#[test]
fn many_documents_have_the_scores_that_each_has_alone() {
    let host = Host::serving(reranker, |_| ());
    let documents: Vec<String> = (0..120)
        .map(|number| format!("the cat {number} {}", "and it ".repeat(number % 9)))
        .collect();
    let all = scores(&rank(
        &host,
        &json!({"query": "a cat", "documents": documents}),
    ));
    for at in [0, 44, 119] {
        let body = json!({"query": "a cat", "documents": [documents[at]]});
        assert_eq!(scores(&rank(&host, &body)), [all[at]], "document {at}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let host = Host::serving(reranker, |_| ());
    let long = "the cat ".repeat(120);
    let body = json!({"query": "a cat", "documents": ["the mat", long]});
    let reply = host.post("/v1/rerank", &body);
    assert_eq!(reply.status, 400);
    insta::assert_snapshot!(reply.body);
    let reply = host.post("/v1/rerank", &json!({"query": "a cat", "documents": []}));
    assert_eq!(
        (reply.status, reply.json()["error"]["param"].as_str()),
        (400, Some("documents"))
    );
    let reply =
        host.send(b"GET /v1/rerank HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    // The server goes on.
    rank(&host, &json!({"query": "a cat", "documents": ["the mat"]}));
}

#[test]
fn texts_are_counted_for_prometheus_and_for_the_page() {
    let models = || {
        let mut models = Models::from(encoder());
        models.add(reranker()).unwrap();
        models
    };
    let host = Host::serving_all(models, |_| ());
    let body = json!({"input": ["the cat", "sat"], "priority": "reactive"});
    assert_eq!(host.post("/v1/embeddings", &body).status, 200);
    rank(&host, &json!({"query": "a cat", "documents": DOCUMENTS}));
    let late = json!({"query": "a cat", "documents": vec!["it"; 2000], "deadline_ms": 1});
    assert_eq!(host.post("/v1/rerank", &late).status, 504);
    for line in [
        r#"heg_text_requests_total{route="embeddings",class="reactive",outcome="complete"} 1"#,
        r#"heg_text_requests_total{route="rerank",class="proactive",outcome="complete"} 1"#,
        r#"heg_texts_total{route="embeddings",class="reactive"} 2"#,
        r#"heg_text_tokens_total{route="embeddings",class="reactive"} 7"#,
        r#"heg_waiting_texts{route="rerank",class="proactive"} 0"#,
    ] {
        host.wait_for_metric(line);
    }
    let data = host.get("/dashboard.json").json();
    let [embeddings, rerank] = [0, 1].map(|route| data["texts"][route].clone());
    assert_eq!(
        (&embeddings["texts"], &embeddings["tokens"]),
        (&json!(2), &json!(7))
    );
    assert!(embeddings["seconds"].as_f64().unwrap() > 0.0, "{data}");
    assert!(rerank["texts"].as_u64().unwrap() >= 5, "{data}");
    assert_eq!(rerank["waiting"], 0);
}

#[test]
fn each_route_finds_the_model_that_gives_its_answers() {
    let models = || {
        let mut models = Models::from(exact());
        models.add(encoder()).unwrap();
        models.add(reranker()).unwrap();
        models
    };
    let host = Host::serving_all(models, |_| ());
    let pair = |model: Option<&str>| {
        let mut body = json!({"query": "a cat", "documents": ["the mat"]});
        if let Some(model) = model {
            body["model"] = model.into();
        }
        body
    };
    assert_eq!(rank(&host, &pair(None))["model"], "bert_reranker");
    let refused = [
        ("/v1/rerank", pair(Some("tiny-agent"))),
        ("/v1/rerank", pair(Some("bert"))),
        (
            "/v1/embeddings",
            json!({"model": "bert_reranker", "input": "Hi"}),
        ),
        (
            "/v1/completions",
            json!({"model": "bert_reranker", "prompt": "Hi"}),
        ),
        (
            "/v1/embeddings",
            json!({"model": "tiny-agent", "input": "Hi"}),
        ),
    ];
    let said = refused.map(|(path, body)| {
        let reply = host.post(path, &body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        let message = reply.json()["error"]["message"].clone();
        format!("{path}: {}\n", message.as_str().unwrap())
    });
    insta::assert_snapshot!(said.concat());
}
