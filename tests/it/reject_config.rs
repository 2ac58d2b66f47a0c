//! Configurations, specs and text assets that cannot be compiled: each is refused with the file, the key or the
//! place, and nothing is left behind.
//!
//! All are copies of tiny-agent with one thing broken. The messages are pinned in `snapshots/`.

use std::fs;

use heg_spec::ModelSpec;
use heg_tests::model_folder::ModelFolder;
use heg_tests::{Workbench, fixture, refused};
use serde_json::{Value, json};

/// Breaks a fresh copy, compiles it, and describes the outcome.
fn check(
    name: &str,
    spoil: impl FnOnce(&ModelFolder),
    change: impl FnOnce(&mut ModelSpec),
) -> String {
    let workbench = Workbench::new().unwrap();
    let folder = workbench.path("models/tiny-agent");
    let model = ModelFolder::copy(&fixture("tiny-agent"), &folder).unwrap();
    spoil(&model);
    let refusal = refused(&workbench, model.path(), change);
    assert!(refusal.starts_with("error: "), "{name}: {refusal}");
    assert!(!refusal.contains("left behind"), "{name}: {refusal}");
    format!("# {name}\n{refusal}\n\n")
}

/// Checks a table of values for keys of `config.json`; null removes the key.
fn check_keys(cases: &[(&str, Value)]) -> String {
    let case = |(key, value): &(&str, Value)| {
        let set = |model: &ModelFolder| model.set_config(key, value.clone()).unwrap();
        check(&format!("{key}: {value}"), set, |_| {})
    };
    cases.iter().map(case).collect()
}

fn check_file(name: &str, file: &str, content: &[u8]) -> String {
    check(
        name,
        |model| fs::write(model.file(file), content).unwrap(),
        |_| {},
    )
}

#[test]
fn unknown_architectures() {
    let spec = |name: &str, change: fn(&mut ModelSpec)| check(name, |_| {}, change);
    let text = [
        check_keys(&[
            ("model_type", json!("lama")),
            ("model_type", json!("mamba2")),
            ("model_type", Value::Null),
            ("model_type", json!(7)),
        ]),
        spec("the model file names an unknown architecture", |spec| {
            spec.architecture = Some("quen3".to_owned());
        }),
        spec("the model file names a missing architecture file", |spec| {
            spec.architecture = Some("mine.ron".to_owned());
        }),
        spec("the model file names an unknown fusion plan", |spec| {
            spec.fusion = "agent_xpu".to_owned();
        }),
    ];
    insta::assert_snapshot!("unknown_architectures", text.concat());
}

#[test]
fn architecture_files_of_ones_own() {
    let llama = heg_spec::shipped::ARCHITECTURES
        .iter()
        .find(|(name, _)| *name == "llama")
        .unwrap();
    let write = |name: &str, text: String| {
        check(
            name,
            |model| fs::write(model.file("mine.ron"), text).unwrap(),
            |spec| spec.architecture = Some("mine.ron".to_owned()),
        )
    };
    let text = [
        write("unknown operator", llama.1.replace("Gated(", "Gatet(")),
        write("unknown field", llama.1.replacen("eps:", "epsilon:", 1)),
        write(
            "unknown wire",
            llama.1.replacen("x: \"normed\"", "x: \"normd\"", 1),
        ),
        write(
            "unknown name",
            llama.1.replacen("out: \"heads *", "out: \"head *", 1),
        ),
        write("not RON", "(name: \"x\",\n layer: [\n".to_owned()),
    ];
    insta::assert_snapshot!("architecture_files", text.concat());
}

#[test]
fn absurd_sizes() {
    let text = check_keys(&[
        ("hidden_size", json!(1_u64 << 40)),
        ("hidden_size", json!(1 << 22)),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-192)),
        ("hidden_size", json!(192.5)),
        ("hidden_size", json!("192")),
        ("hidden_size", Value::Null),
        ("hidden_size", json!(256)),
        ("num_hidden_layers", json!(1_000_000_000)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(7)),
        ("num_attention_heads", json!(7)),
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(4)),
        ("num_key_value_heads", json!(12)),
        ("head_dim", json!(0)),
        ("head_dim", json!(33)),
        ("head_dim", json!(1 << 20)),
        ("intermediate_size", json!(1_u64 << 50)),
        ("intermediate_size", json!(449)),
        ("vocab_size", json!(1_u64 << 31)),
        ("vocab_size", json!(2049)),
        ("max_position_embeddings", json!(0)),
        ("max_position_embeddings", json!(1_u64 << 62)),
        ("num_hidden_layers", json!(4096)),
        ("rms_norm_eps", json!("small")),
        ("rms_norm_eps", json!(1e300)),
        ("rms_norm_eps", json!(-1e-5)),
        ("rope_theta", json!(0)),
        ("rope_theta", json!(-10000.0)),
        ("hidden_act", json!("swish2")),
        ("tie_word_embeddings", json!(false)),
    ]);
    insta::assert_snapshot!("absurd_sizes", text);
}

#[test]
fn contexts() {
    let context = |tokens: u32| {
        check(
            &format!("context of {tokens} tokens"),
            |_| {},
            |spec| spec.context_tokens = Some(tokens),
        )
    };
    insta::assert_snapshot!("contexts", [context(0), context(1), context(1025)].concat());
}

#[test]
fn rotary_scalings() {
    let text = check_keys(&[
        (
            "rope_scaling",
            json!({"rope_type": "spiral", "factor": 2.0}),
        ),
        (
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8.0}),
        ),
        ("rope_scaling", json!({"rope_type": "linear"})),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 0})),
        (
            "rope_scaling",
            json!({"rope_type": "linear", "factor": -2.0}),
        ),
        (
            "rope_scaling",
            json!({"rope_type": "linear", "factor": "two"}),
        ),
        ("rope_scaling", json!({"rope_type": 3})),
        ("rope_scaling", json!("linear")),
        (
            "rope_scaling",
            json!({"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}),
        ),
    ]);
    insta::assert_snapshot!("rotary_scalings", text);
}

#[test]
fn config_files() {
    let missing = check(
        "missing",
        |model| fs::remove_file(model.file("config.json")).unwrap(),
        |_| {},
    );
    let folder = check(
        "a folder",
        |model| {
            fs::remove_file(model.file("config.json")).unwrap();
            fs::create_dir(model.file("config.json")).unwrap();
        },
        |_| {},
    );
    let file = |name, content: &[u8]| check_file(name, "config.json", content);
    let text = [
        missing,
        folder,
        file("empty", b""),
        file(
            "cut",
            b"{\n \"model_type\": \"llama\",\n \"hidden_size\": 19",
        ),
        file("a comma too many", b"{\n \"model_type\": \"llama\",\n}"),
        file("a list", b"[1, 2]"),
        file("not UTF-8", b"{\"model_type\": \"ll\xffma\"}"),
        file("nothing in it", b"{}"),
        file("only a model type", b"{\"model_type\": \"llama\"}"),
    ];
    insta::assert_snapshot!("config_files", text.concat());
}

#[test]
fn text_assets() {
    let text = [
        check_file(
            "tokenizer_config.json cut",
            "tokenizer_config.json",
            b"{\n \"bos_token\": ",
        ),
        check_file(
            "stop tokens that are none",
            "generation_config.json",
            b"{\"eos_token_id\": [2041, \"end\"]}",
        ),
        check_file(
            "a template that is not UTF-8",
            "chat_template.jinja",
            b"{{ '\xff' }}",
        ),
    ];
    insta::assert_snapshot!("text_assets", text.concat());
}
