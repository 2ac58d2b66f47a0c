//! Log probabilities: those of the model alone, on every kind of lane, whole and in pieces, with and without the prompt.

use std::path::Path;
use std::time::Duration;

use heg_runtime::engine::{EndTokens, Engine, EngineOptions, Generation, Request, Update};
use heg_runtime::exec::ExecutorOptions;
use heg_runtime::{FinishReason, Loaded};
use heg_sched::Logits;
use heg_spec::{WeightForm, shipped};
use heg_tests::{Workbench, executor, fixture};
use heg_text::TokenLogProbs;
use serde_json::{Value, json};

use crate::host::{Host, bundle, exact};

const CHAT: &str = "/v1/chat/completions";
const BARE: &str = "/v1/completions";
const PRECISION: f64 = 1e-4;

/// Log probabilities of all tokens at every place of a text, by an executor alone. The first `prompt` tokens are read
/// at once, as in `heg score`, and the others one by one.
fn plain(bundle: &Path, tokens: &[u32], prompt: usize) -> Vec<Vec<f64>> {
    let mut executor = executor(bundle, "host-cpu-f32", 256).unwrap();
    let mut sequence = executor.sequence().unwrap();
    let (read, answered) = tokens.split_at(prompt);
    executor.prefill(&mut sequence, read, Logits::None).unwrap();
    let mut all: Vec<Vec<f64>> = (0..prompt)
        .map(|row| log_probabilities(executor.row_logits(row..row + 1).unwrap()))
        .collect();
    for token in answered {
        let logits = executor.decode(&mut [&mut sequence], &[*token]).unwrap();
        all.push(log_probabilities(logits));
    }
    all
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - top).exp())
        .sum();
    logits
        .iter()
        .map(|logit| f64::from(logit - top) - sum.ln())
        .collect()
}

/// Asserts that both agree within [`PRECISION`]; beyond 1, relative to the number, as f32 keeps seven digits of a
/// logit, not seven decimals.
fn assert_close(found: f64, expected: f64, what: &str) {
    assert!(
        (found - expected).abs() < PRECISION * expected.abs().max(1.0),
        "{what}: expected {expected}, found {found}"
    );
}

/// Checks the reported log probabilities of `token` at a place with these log probabilities.
fn check(said: &TokenLogProbs, token: u32, plain: &[f64], top: usize) {
    assert_eq!(said.token.token, token);
    let what = format!("token {token}");
    assert_close(said.token.log_probability, plain[token as usize], &what);
    let mut sorted = plain.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    assert_eq!(said.top.len(), top);
    for (found, best) in said.top.iter().zip(sorted) {
        let what = format!("alternative {}", found.token);
        assert_close(found.log_probability, best, &what);
        assert_close(found.log_probability, plain[found.token as usize], &what);
    }
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|token| 5 + token * 37 % 900).collect()
}

/// Returns the engine's log probabilities for the prompt, and for each token of the answer.
fn said(mut generation: Generation) -> (Vec<TokenLogProbs>, Vec<TokenLogProbs>) {
    let (mut of_prompt, mut of_answer) = (None, Vec::new());
    loop {
        match generation.next_within(Duration::from_secs(120)).unwrap() {
            Update::Accepted { .. } | Update::Vector(_) => {}
            Update::Prompt(log_probs) => {
                assert!(of_prompt.is_none() && of_answer.is_empty());
                of_prompt = Some(log_probs);
            }
            Update::Token { id, log_probs } => {
                let log_probs = *log_probs.unwrap();
                assert_eq!(log_probs.token.token, id);
                of_answer.push(log_probs);
            }
            Update::Finished(ending) => {
                assert_eq!(ending.reason, FinishReason::Length, "{ending:?}");
                assert_eq!(ending.reused_tokens, 0);
                return (of_prompt.unwrap(), of_answer);
            }
        }
    }
}

#[test]
fn every_kind_of_lane_agrees_with_the_model_alone() {
    // Lanes round integer weights in different ways.
    let f32 = |spec: &mut heg_spec::ModelSpec| spec.weights = WeightForm::F32;
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "f32", f32);
    let bundle = compiled.unwrap().0;
    let prompt = prompt(75);
    let mut expected = Vec::new();
    for (soc, policy) in [
        ("host-cpu-f32", "agent-xpu-one-device"),
        ("host-cpu-f32", "cpu-continuous-batching"),
        ("host-roles", "agent-xpu"),
        ("host-roles", "igpu-continuous-batching"),
        ("host-roles", "sd-npu"),
    ] {
        println!("{policy} on {soc}");
        let loaded = Loaded::open(&bundle).unwrap();
        let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
        let options = EngineOptions {
            exec: ExecutorOptions {
                chunk_tokens: 32,
                ..ExecutorOptions::default()
            },
            ..EngineOptions::default()
        };
        let engine = Engine::start(loader, shipped::policy(policy).unwrap(), options).unwrap();
        let plain_request = || Request {
            tokens_max: 6,
            end_tokens: EndTokens::Ignored,
            ..Request::reactive(prompt.clone())
        };
        let asking = |top| Request {
            log_probs: Some(top),
            prompt_log_probs: Some(top + 1),
            ..plain_request()
        };
        // Its prefix stays in the cache; requests for log probabilities must not reuse it.
        let (alone, _) = engine.generate(plain_request()).wait().unwrap();
        let together = [
            engine.generate(asking(0)),
            engine.generate(asking(3)),
            engine.generate(plain_request()),
        ];
        let [first, second, third] = together;
        for (generation, top) in [(first, 0), (second, 3)] {
            let (of_prompt, of_answer) = said(generation);
            let mut tokens = prompt.clone();
            tokens.extend(of_answer.iter().map(|said| said.token.token));
            if expected.is_empty() {
                expected = plain(&bundle, &tokens, prompt.len());
            }
            assert_eq!(tokens[75..], alone);
            assert_eq!(of_prompt.len(), 74);
            for (place, said) in of_prompt.iter().chain(&of_answer).enumerate() {
                let top = if place < 74 { top + 1 } else { top };
                check(said, tokens[place + 1], &expected[place], top);
            }
        }
        assert_eq!(third.wait().unwrap().0, alone);
    }
}

#[test]
fn a_prompt_comes_back_with_its_log_probabilities() {
    let host = Host::serving(exact, |_| ());
    let tokenizer = Loaded::open(bundle()).unwrap().tokenizer().unwrap();
    let text = "Remind me to call Ana, né, at 5 pm.";
    for max_tokens in [0, 5] {
        let body = json!({"prompt": text, "max_tokens": max_tokens, "temperature": 0, "echo": true,
            "logprobs": 2, "ignore_eos": true, "return_token_ids": true});
        let reply = host.post(BARE, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let answer = reply.json();
        let choice = &answer["choices"][0];
        let mut tokens = tokenizer.encode(text, heg_text::Special::Add).unwrap();
        let prompt_tokens = tokens.len();
        let ids = choice["token_ids"].as_array().unwrap();
        assert_eq!(ids.len(), max_tokens);
        tokens.extend(ids.iter().map(|id| id.as_u64().unwrap() as u32));
        assert_eq!(answer["usage"]["prompt_tokens"], prompt_tokens);
        assert_eq!(answer["usage"]["completion_tokens"], max_tokens);
        assert_eq!(choice["finish_reason"], "length");
        let shown = choice["text"].as_str().unwrap();
        assert!(shown.starts_with(text), "{shown}");
        let logprobs = &choice["logprobs"];
        let expected = plain(bundle(), &tokens, prompt_tokens);
        let listed = |name: &str| logprobs[name].as_array().unwrap().clone();
        let chosen = listed("token_logprobs");
        assert_eq!((chosen.len(), &chosen[0]), (tokens.len(), &Value::Null));
        assert_eq!(logprobs["top_logprobs"][0], Value::Null);
        for place in 1..tokens.len() {
            let found = chosen[place].as_f64().unwrap();
            let plain = expected[place - 1][tokens[place] as usize];
            assert_close(found, plain, &format!("place {place}"));
            let top = logprobs["top_logprobs"][place].as_object().unwrap();
            assert!((2..=3).contains(&top.len()), "{top:?}");
            let text = logprobs["tokens"][place].as_str().unwrap();
            assert_eq!(top[text], chosen[place]);
        }
        // Each token begins at its offset.
        let letters: Vec<char> = shown.chars().collect();
        let places = listed("tokens").into_iter().zip(listed("text_offset"));
        for (token, offset) in places {
            let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap() as usize);
            let there: String = letters[offset..].iter().collect();
            let is_part = token.contains('\u{fffd}') || token.starts_with("<|");
            assert!(is_part || there.starts_with(token), "{token:?}: {there:?}");
        }
        // In pieces it is the same.
        let mut body = body;
        body["stream"] = true.into();
        let (streamed, pieces) = joined(&host.post(BARE, &body).events());
        assert_eq!(streamed, shown);
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let pieces = pieces
                .iter()
                .flat_map(|piece| piece[name].as_array().unwrap());
            assert_eq!(pieces.cloned().collect::<Vec<_>>(), listed(name), "{name}");
        }
    }
    // Without log probabilities it is text alone, and token ids come back as text too.
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 0, "echo": true});
    let choice = &host.post(BARE, &body).json()["choices"][0];
    assert_eq!(choice["text"], tokenizer.decode(&[5, 6, 7]).unwrap());
    assert_eq!(choice["logprobs"], Value::Null);
}

/// Returns the text of a stream's first answer, and the `logprobs` of its chunks.
fn joined(events: &[&str]) -> (String, Vec<Value>) {
    assert_eq!(events.last(), Some(&"[DONE]"), "{events:?}");
    let (mut text, mut pieces) = (String::new(), Vec::new());
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        let piece = [&choice["delta"]["content"], &choice["text"]];
        text.extend(piece.iter().filter_map(|piece| piece.as_str()));
        pieces.extend(Some(choice["logprobs"].clone()).filter(|piece| !piece.is_null()));
    }
    (text, pieces)
}

#[test]
fn a_conversation_has_log_probabilities_of_the_model_itself() {
    let host = Host::serving(exact, |_| ());
    let mut body = json!({"messages": [{"role": "user", "content": "Remind me to call Ana at 5 pm."}],
        "logprobs": true, "top_logprobs": 4, "temperature": 0});
    let whole = host.post(CHAT, &body).json();
    let choice = &whole["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(choice["logprobs"]["refusal"], Value::Null);
    assert_eq!(whole["usage"]["completion_tokens"], content.len());
    let bytes = |token: &Value| -> Vec<u8> {
        let bytes = token["bytes"].as_array().unwrap();
        bytes
            .iter()
            .map(|byte| byte.as_u64().unwrap() as u8)
            .collect()
    };
    // The last token is the one that ends the answer.
    let (end, said) = content.split_last().unwrap();
    let text: Vec<u8> = said.iter().flat_map(bytes).collect();
    assert_eq!(
        String::from_utf8(text).unwrap(),
        choice["message"]["content"].as_str().unwrap()
    );
    assert!(end["token"].as_str().unwrap().starts_with("<|"), "{end}");
    for token in content {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 4);
        // Greedy: the best token was chosen.
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
    }
    body["stream"] = true.into();
    let (_, pieces) = joined(&host.post(CHAT, &body).events());
    let pieces = pieces
        .iter()
        .flat_map(|piece| piece["content"].as_array().unwrap());
    assert_eq!(&pieces.cloned().collect::<Vec<_>>(), content);
    // Biases and temperature change the choice, not the model's probabilities.
    body["stream"] = false.into();
    body["seed"] = 1.into();
    body["temperature"] = 3.into();
    body["max_tokens"] = 1.into();
    body["return_token_ids"] = true.into();
    let first = &content[0]["top_logprobs"];
    body["logit_bias"] = json!({"0": 5, "1": -5, "2": 100});
    let biased = host.post(CHAT, &body).json();
    assert_eq!(biased["choices"][0]["token_ids"], json!([2]));
    assert_eq!(
        &biased["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
        first
    );
}
