//! Operator graphs of every family, pinned; and errors in architectures and configs.

use heg_spec::{Architecture, Source};
use insta::assert_snapshot;

use super::{Dims, build_head, build_layer};
use crate::fixture::{Described, FAMILIES, path};
use heg_ingest::ConfigJson;

/// Layers 0 and 1 and the head.
fn dump(model: &Described) -> String {
    let (first, second, head) = (model.layer(0), model.layer(1), model.head());
    format!("layer 0\n{first}\nlayer 1\n{second}\nhead\n{head}")
}

macro_rules! pinned {
    ($($family:ident),+) => {
        $(#[test]
        fn $family() {
            let name = stringify!($family);
            assert_snapshot!(name, dump(&Described::family(name)));
        })+

        #[test]
        fn every_family_is_pinned() {
            assert_eq!([$(stringify!($family)),+], FAMILIES);
        }
    };
}

pinned!(
    bert,
    bert_reranker,
    gemma2,
    gemma3,
    granite,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3
);

/// Configs of transformers 5 express the same under other keys.
#[test]
fn configs_of_both_transformers_give_the_same_graphs() {
    for family in FAMILIES {
        let old = Described::family(family);
        let new = Described::read(&path(&format!("golden/{family}/config.transformers5.json")));
        assert_eq!(old.dims, new.dims, "{family}");
        for layer in 0..old.dims.layers {
            let (old, new) = (old.layer(layer).to_string(), new.layer(layer).to_string());
            assert_eq!(old, new, "{family}, layer {layer}");
        }
        assert_eq!(old.head().to_string(), new.head().to_string(), "{family}");
        let (old, new) = (old.plan(), new.plan());
        assert_eq!(old.embedding_scale, new.embedding_scale, "{family}");
        assert_eq!(old.context_tokens, new.context_tokens, "{family}");
        assert_eq!(old.heg.layers, new.heg.layers, "{family}");
    }
}

const LAYER: &str = r#"
        ("q", Linear(x: "x", weight: "{layer}.q", out: "heads * head_dim")),
        ("k", Linear(x: "x", weight: "{layer}.k", out: "kv_heads * head_dim")),
        ("r", Rope(x: "k", heads: "kv_heads", table: "'default'")),
        ("a", Attention(q: "q", k: "r", v: "k", scale: "1")),
        ("o", Linear(x: "a", weight: "{layer}.o", out: "hidden")),
        ("y", Add(a: "x", b: "o")),
"#;

/// Builds layer 0 and the head of a small model, with a part of its description replaced.
fn build(replace: (&str, &str)) -> Result<(), String> {
    let text = r#"(
    name: "tiny",
    model_types: ["tiny"],
    values: {
        "hidden": "8",
        "layers": "2",
        "heads": "2",
        "kv_heads": "1",
        "head_dim": "4",
        "vocab": "config.vocab_size",
        "context": "64",
    },
    embedding: (weight: "embed"),
    rope: {"default": (theta: "10000", dim: "head_dim")},
    layer: [LAYER],
    head: [("logits", Linear(x: "x", weight: "head", out: "vocab"))],
)"#
    .replace("LAYER", LAYER);
    assert!(text.contains(replace.0), "{}", replace.0);
    let text = text.replace(replace.0, replace.1);
    let source = Source {
        file: "tiny.ron",
        text: &text,
    };
    let architecture = Architecture::parse(source).map_err(|error| error.to_string())?;
    let config = br#"{"vocab_size": 10, "size": 2.5, "act": "relu"}"#;
    let config = ConfigJson::parse("config.json".as_ref(), config).unwrap();
    let build = || {
        let dims = Dims::bind(&architecture, &config)?;
        build_layer(&architecture, &config, &dims, 0)?;
        build_head(&architecture, &config, &dims).map(|_| ())
    };
    build().map_err(|error: crate::CompileError| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        error.to_string() + &cause.unwrap_or_default()
    })
}

fn check_refused(replace: (&str, &str), expected: &str) {
    let found = build(replace).unwrap_err();
    assert_eq!(found, expected, "{replace:?}");
}

#[test]
fn a_small_model_is_accepted() {
    build(("tiny", "tiny")).unwrap();
}

#[test]
fn absurd_dimensions_are_refused() {
    let dimension = |name: &str, value: &str, text: &str| {
        let old = match name {
            "layers" | "heads" => format!("\"{name}\": \"2\""),
            "hidden" => format!("\"{name}\": \"8\""),
            _ => format!("\"{name}\": \"config.vocab_size\""),
        };
        let new = format!("\"{name}\": \"{value}\"");
        check_refused((&old, &new), text);
    };
    dimension(
        "layers",
        "1e9",
        "dimension `layers` is 1000000000, expected at most 4096",
    );
    dimension(
        "heads",
        "0",
        "architecture `tiny`: `0` gives 0, expected a whole number from 1 to 2147483647",
    );
    dimension(
        "hidden",
        "config.size",
        "architecture `tiny`: `config.size` gives 2.5, expected a whole number from 1 to 2147483647",
    );
    dimension(
        "vocab",
        "config.vocabulary",
        "architecture `tiny`: `config.vocabulary` gives nothing, expected a whole number from 1 to 2147483647",
    );
    check_refused(
        ("\"kv_heads\": \"1\"", "\"kv_heads\": \"3\""),
        "dimension `heads` is 2, expected a multiple of the 3 key/value heads",
    );
}

#[test]
fn names_that_lead_nowhere_are_refused() {
    check_refused(
        ("\"head_dim\": \"4\"", "\"head_dim\": \"hiden / 2\""),
        "architecture `tiny`: `hiden / 2`: unknown name `hiden`; did you mean `hidden`?",
    );
    check_refused(
        ("\"head_dim\": \"4\"", "\"head_dim\": \"head_dim * 1\""),
        "architecture `tiny`: `head_dim * 1`: `head_dim` is defined by itself",
    );
    check_refused(
        ("'default'", "'global'"),
        "architecture `tiny`: operator `r` refers to unknown `global`",
    );
}

#[test]
fn widths_that_do_not_meet_are_refused() {
    check_refused(
        ("out: \"heads * head_dim\"", "out: \"hidden + 4\""),
        "architecture `tiny`: operator `a` needs rows of 8, found 12",
    );
    check_refused(
        ("b: \"o\"", "b: \"k\""),
        "architecture `tiny`: operator `y` needs rows of 8, found 4",
    );
    check_refused(
        ("out: \"hidden\"", "out: \"hidden * 2\""),
        "architecture `tiny`: operator `y` needs rows of 8, found 16",
    );
    check_refused(
        ("heads: \"kv_heads\"", "heads: \"heads\""),
        "architecture `tiny`: operator `r` needs rows of 8, found 4",
    );
    check_refused(
        ("out: \"vocab\"", "out: \"vocab + 1\""),
        "architecture `tiny`: operator `logits` needs rows of 10, found 11",
    );
    for (groups, expected) in [(3, 6), (100, 100)] {
        let norm = format!(
            r#"("n", RmsNorm(x: "x", weight: "n", eps: "1", groups: "{groups}")), ("y", Add"#
        );
        check_refused(
            ("(\"y\", Add", &norm),
            &format!("architecture `tiny`: operator `n` needs rows of {expected}, found 8"),
        );
    }
}

#[test]
fn operators_that_cannot_be_are_refused() {
    check_refused(
        ("dim: \"head_dim\"", "dim: \"3\""),
        "dimension `rope.dim` is 3, expected an even number up to the head dimension 4",
    );
    check_refused(
        ("dim: \"head_dim\"", "dim: \"6\""),
        "dimension `rope.dim` is 6, expected an even number up to the head dimension 4",
    );
    let gated = r#"("g", Gated(gate: "x", up: "x", activation: "config.act")), ("y", Add"#;
    check_refused(
        ("(\"y\", Add", gated),
        "architecture `tiny`: `config.act` gives 'relu', expected one of 'silu', 'gelu', 'gelu_pytorch_tanh'",
    );
    check_refused(
        ("scale: \"1\"", "scale: \"1 / 0\""),
        "architecture `tiny`: `1 / 0` gives inf, expected a finite number",
    );
}
