//! Several models in one server: each answers as if it were alone, and a person's request to one goes before background
//! work of the other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use heg_runtime::engine::{DeviceTurns, EngineOptions};
use heg_server::{Models, ServedModel};
use heg_spec::shipped;
use heg_tests::{Workbench, fixture};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::host::{Host, bundle, served_by, wait_until};

/// The same model in floats: another bundle, whose answers may be others.
fn floats() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |options| {
            options.weights = heg_spec::WeightForm::F32;
        });
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let copy = NamedTempFile::new_in(folder).unwrap();
        fs::copy(compiled.unwrap().0, copy.path()).unwrap();
        let bundle = folder.join("serve-tiny-agent-floats.heg");
        copy.persist(&bundle).unwrap();
        bundle
    })
}

fn model(bundle: &Path, turns: &DeviceTurns) -> ServedModel {
    let policy = shipped::policy("agent-xpu-one-device").unwrap();
    let options = EngineOptions {
        turns: turns.clone(),
        ..EngineOptions::default()
    };
    served_by(bundle, "host-cpu", policy, options)
}

fn both() -> Models {
    let turns = DeviceTurns::shared();
    let mut models = Models::from(model(bundle(), &turns));
    let floats = model(floats(), &turns).named("floats".to_owned());
    models.add(floats).unwrap();
    models.alias("small".to_owned(), "tiny-agent").unwrap();
    models
}

fn asked(model: &str, prompt: &str, class: &str, tokens: u32) -> Value {
    json!({
        "model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "priority": class, "temperature": 0,
        "return_token_ids": true,
    })
}

const PROMPTS: [&str; 4] = [
    "The agent",
    "call the tool",
    "It is",
    "List all events of today",
];

/// A lone server's answers to all prompts.
fn alone(serve: fn() -> ServedModel) -> Vec<Value> {
    let host = Host::serving(serve, |_| ());
    let answer = |prompt: &&str| {
        let body = asked("tiny-agent", prompt, "reactive", 24);
        host.post("/v1/completions", &body).json()["choices"][0]["text"].clone()
    };
    PROMPTS.iter().map(answer).collect()
}

#[test]
fn two_models_answer_as_each_does_alone() {
    let expected = BTreeMap::from([
        ("small", alone(|| model(bundle(), &DeviceTurns::default()))),
        ("floats", alone(|| model(floats(), &DeviceTurns::default()))),
    ]);
    let host = Host::serving_all(both, |_| ());
    thread::scope(|scope| {
        for (at, prompt) in PROMPTS.iter().enumerate() {
            for (name, expected) in &expected {
                let class = ["reactive", "proactive"][at % 2];
                let (host, expected) = (&host, &expected[at]);
                scope.spawn(move || {
                    let reply = host.post("/v1/completions", &asked(name, prompt, class, 24));
                    assert_eq!(
                        &reply.json()["choices"][0]["text"],
                        expected,
                        "{name}: {prompt}"
                    );
                });
            }
        }
    });
}

#[test]
fn a_model_is_asked_for_by_its_name_or_another() {
    let host = Host::serving_all(both, |_| ());
    let listed = || host.get("/v1/models").json();
    wait_until("both models are ready", || {
        let listed = listed();
        let models = listed["data"].as_array().unwrap();
        models.iter().all(|model| model["state"] == "ready")
    });
    let mut listed = listed();
    for model in listed["data"].as_array_mut().unwrap() {
        let model = model.as_object_mut().unwrap();
        let bytes = model.shift_remove("bundle_bytes").unwrap();
        assert!(bytes.as_u64().unwrap() > 1 << 20);
        model.shift_remove("created").unwrap();
    }
    insta::assert_snapshot!(serde_json::to_string_pretty(&listed["data"]).unwrap(), @r#"
    [
      {
        "id": "tiny-agent",
        "object": "model",
        "owned_by": "heg",
        "max_model_len": 1024,
        "vocab_size": 2048,
        "aliases": [
          "small"
        ],
        "state": "ready"
      },
      {
        "id": "floats",
        "object": "model",
        "owned_by": "heg",
        "max_model_len": 1024,
        "vocab_size": 2048,
        "aliases": [],
        "state": "ready"
      }
    ]
    "#);
    assert_eq!(host.get("/v1/models/small").json()["id"], "tiny-agent");
    let reply = host.post("/v1/completions", &asked("small", "It is", "reactive", 2));
    assert_eq!(reply.json()["model"], "tiny-agent");
    let unnamed = json!({"prompt": "It is", "max_tokens": 2});
    let reply = host.post("/v1/completions", &unnamed);
    assert_eq!(reply.json()["model"], "tiny-agent");
    let refused = host.post("/v1/completions", &asked("large", "It is", "reactive", 2));
    assert_eq!(refused.status, 404);
    insta::assert_snapshot!(refused.json()["error"]["message"].as_str().unwrap(), @"`model`: expected `tiny-agent` or `floats`, found the text `large`");
}

#[test]
fn flows_of_one_name_are_each_models_own() {
    let host = Host::serving_all(both, |_| ());
    let prompt =
        "The agent calls a tool for each event of the day, and then it says what it has done. "
            .repeat(2);
    let reused = |model: &str, prompt: &str| {
        let mut body = asked(model, prompt, "reactive", 2);
        body["flow_id"] = "day".into();
        let reply = host.post("/v1/completions", &body).json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(reused("small", &prompt), 0);
    assert_eq!(reused("floats", &prompt), 0);
    let longer = format!("{prompt} More.");
    assert!(reused("small", &longer) > 0 && reused("floats", &longer) > 0);
    let ended = host
        .post("/v1/flows/end", &json!({"flow_id": "day"}))
        .json();
    assert_eq!(ended, json!({"ended": true}));
    assert_eq!(reused("floats", &format!("{longer} And more.")), 0);
}

#[test]
fn background_work_of_one_model_makes_way_for_a_person_at_another() {
    let host = Host::serving_all(both, |_| ());
    let waited = |model: &str| {
        let metrics = host.get("/metrics").body;
        let name = format!("heg_lane_waited_seconds_total{{model=\"{model}\",lane=\"cpu\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0.0, |seconds| seconds.parse::<f64>().unwrap())
    };
    host.post("/v1/completions", &asked("small", "It is", "reactive", 1));
    let before = waited("floats");
    thread::scope(|scope| {
        let host = &host;
        let background = asked("floats", "List all events", "proactive", 400);
        let background = scope.spawn(move || host.post("/v1/completions", &background));
        host.wait_for_metric(
            r#"heg_live_requests{model="floats",class="proactive",phase="decoding"} 1"#,
        );
        let persons = host.post("/v1/completions", &asked("small", "It is", "reactive", 48));
        assert_eq!(persons.status, 200);
        assert!(
            !background.is_finished(),
            "there is nothing to make way for"
        );
        assert_eq!(background.join().unwrap().status, 200);
    });
    assert!(waited("floats") > before);
    // Each family stands once, though both models have it.
    let metrics = host.get("/metrics").body;
    let described = metrics
        .lines()
        .filter(|line| line.starts_with("# HELP heg_launches "));
    assert_eq!(described.count(), 1);
    assert!(metrics.ends_with("# EOF\n"));
}

#[test]
fn a_name_is_one_models() {
    let mut models = both();
    let other = model(bundle(), &DeviceTurns::default());
    insta::assert_snapshot!(models.add(other).unwrap_err(), @"cannot serve model `tiny-agent`: a model of this server has that name already");
    insta::assert_snapshot!(models.alias("large".to_owned(), "none").unwrap_err(), @"cannot serve model `none`: no model of this server has that name");
    assert_eq!(models.names(), ["tiny-agent", "floats"]);
}
