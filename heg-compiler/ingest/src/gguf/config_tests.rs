//! The configuration of every family from metadata, in files that llama.cpp's conversion wrote.

use std::path::PathBuf;

use super::super::ModelSource;
use super::written::{Written, number, text, whole};

fn config(file: &Written) -> ModelSource {
    ModelSource::from_gguf_bytes("m", &file.bytes()).unwrap()
}

/// Pins one line per key of every fixture.
#[test]
fn every_family_has_the_keys_of_its_folder() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gguf");
    let mut lines = String::new();
    for family in [
        "gemma2", "gemma3", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3",
        "smollm3",
    ] {
        let source = ModelSource::open(&root.join(format!("{family}.gguf"))).unwrap();
        lines.push_str(&format!("{family}:"));
        for key in KEYS {
            if let Some(value) = source.config.value(key) {
                lines.push_str(&format!(" {key}={value}"));
            }
        }
        lines.push('\n');
    }
    insta::assert_snapshot!(lines, @r##"
    gemma2: model_type="gemma2" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=1e-6 rope_theta=10000.0 sliding_window=32 layer_types=["sliding_attention","full_attention"] query_pre_attn_scalar=16 attn_logit_softcapping=4.0 final_logit_softcapping=1.0 tie_word_embeddings=true attention_bias=false mlp_bias=false
    gemma3: model_type="gemma3_text" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=1e-6 rope_theta=1000000.0 rope_local_base_freq=10000.0 rope_scaling={"rope_type":"linear","factor":8.0} sliding_window=32 layer_types=["sliding_attention","sliding_attention"] query_pre_attn_scalar=16 tie_word_embeddings=true attention_bias=false mlp_bias=false
    granite: model_type="granite" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=1e-6 rope_theta=10000.0 attention_multiplier=0.125 embedding_multiplier=3.0 residual_multiplier=0.6 logits_scaling=2.0 tie_word_embeddings=true attention_bias=false mlp_bias=false
    llama: model_type="llama" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=0.00001 rope_theta=500000.0 rope_scaling={"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64.0} tie_word_embeddings=false attention_bias=false mlp_bias=false
    mistral: model_type="llama" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=1e-6 rope_theta=10000.0 tie_word_embeddings=false attention_bias=false mlp_bias=false
    olmo2: model_type="olmo2" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=0.00001 rope_theta=500000.0 tie_word_embeddings=false attention_bias=false mlp_bias=false
    phi3: model_type="phi3" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=0.00001 rope_theta=10000.0 partial_rotary_factor=0.5 original_max_position_embeddings=512 tie_word_embeddings=false attention_bias=false mlp_bias=false
    qwen2: model_type="qwen2" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=1e-6 rope_theta=1000000.0 tie_word_embeddings=true attention_bias=true mlp_bias=false
    qwen3: model_type="qwen3" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=32 vocab_size=256 rms_norm_eps=1e-6 rope_theta=1000000.0 tie_word_embeddings=true attention_bias=false mlp_bias=false
    smollm3: model_type="smollm3" hidden_size=64 num_hidden_layers=2 intermediate_size=128 max_position_embeddings=512 num_attention_heads=4 num_key_value_heads=2 head_dim=16 vocab_size=256 rms_norm_eps=1e-6 rope_theta=2000000.0 tie_word_embeddings=true attention_bias=false mlp_bias=false
    "##);
}

const KEYS: &[&str] = &[
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "rope_local_base_freq",
    "rope_scaling",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "sliding_window",
    "layer_types",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
];

fn scaling(change: impl FnOnce(&mut Written)) -> String {
    let mut file = Written::llama();
    change(&mut file);
    let source = config(&file);
    let scaling = source.config.value("rope_scaling");
    scaling.map_or_else(|| "none".to_owned(), ToString::to_string)
}

/// Factors for a head of 16 at base 10 000, as the conversion computes them.
fn factors(original: f64, factor: f64) -> Vec<u8> {
    let factors = (0..8).map(|pair| {
        let wavelength = 2.0 * std::f64::consts::PI * 10_000_f64.powf(f64::from(pair) / 8.0);
        let smooth = (original / wavelength - 1.0) / 3.0;
        if wavelength < original / 4.0 {
            1.0
        } else if wavelength > original {
            factor
        } else {
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    });
    factors.flat_map(|f| (f as f32).to_le_bytes()).collect()
}

#[test]
fn rotary_scalings_become_hugging_faces() {
    let freqs =
        |bytes: Vec<u8>| move |file: &mut Written| file.add("rope_freqs.weight", &[8], 0, bytes);
    let odd: Vec<u8> = (1..9_u8)
        .flat_map(|n| (f32::from(n) * 0.3).to_le_bytes())
        .collect();
    let scalings = [
        scaling(|file| file.set("llama.rope.scaling.type", text("none"))),
        scaling(|file| file.set("llama.rope.scale_linear", number(4.0))),
        scaling(|file| {
            file.set("llama.rope.scaling.type", text("linear"));
            file.set("llama.rope.scaling.factor", number(8.0));
        }),
        scaling(|file| {
            file.set("llama.rope.scaling.type", text("yarn"));
            file.set("llama.rope.scaling.factor", number(4.0));
            file.set("llama.rope.scaling.original_context_length", whole(32_768));
        }),
        scaling(freqs(factors(8192.0, 32.0))),
        scaling(freqs(factors(1000.0, 8.0))),
        scaling(freqs(factors(1e-9, 1.0))),
        scaling(freqs(odd)),
    ];
    insta::assert_snapshot!(scalings.join("\n"), @r##"
    none
    {"rope_type":"linear","factor":4.0}
    {"rope_type":"linear","factor":8.0}
    {"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}
    {"rope_type":"llama3","factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192.0}
    {"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":1000.0}
    none
    {"rope_type":"longrope","long_factor":[0.3,0.6,0.90000004,1.2,1.5,1.8000001,2.1000001,2.4],"short_factor":[0.3,0.6,0.90000004,1.2,1.5,1.8000001,2.1000001,2.4],"attention_factor":1.0,"original_max_position_embeddings":64}
    "##);
}

#[test]
fn longrope_needs_both_lists() {
    let both = |names: &[&str]| {
        let mut file = Written::llama();
        file.set("llama.rope.scaling.type", text("longrope"));
        file.set("llama.rope.scaling.original_context_length", whole(32));
        file.set("llama.rope.scaling.attn_factor", number(1.5));
        for name in names {
            let factors = (1..9_u8).flat_map(|n| f32::from(n).to_le_bytes());
            file.add(
                &format!("rope_factors_{name}.weight"),
                &[8],
                0,
                factors.collect(),
            );
        }
        match ModelSource::from_gguf_bytes("m", &file.bytes()) {
            Ok(source) => source.config.value("rope_scaling").unwrap().to_string(),
            Err(error) => error.to_string(),
        }
    };
    let expected = "{\"rope_type\":\"longrope\",\
                    \"long_factor\":[1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0],\
                    \"short_factor\":[1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0],\
                    \"original_max_position_embeddings\":32,\
                    \"attention_factor\":1.5}";
    assert_eq!(both(&["long", "short"]), expected);
    let missing = |name| format!("no tensor `rope_factors_{name}.weight` in the weights");
    assert_eq!(both(&["long"]), missing("short"));
    assert_eq!(both(&["short"]), missing("long"));
    assert_eq!(both(&[]), missing("long"));
}

#[test]
fn a_window_in_a_llama_file_makes_it_mistral() {
    let mut file = Written::llama();
    file.set("llama.attention.sliding_window", whole(32));
    let source = config(&file);
    assert_eq!(source.config.text("model_type"), Some("mistral"));
    assert_eq!(source.config.integer("sliding_window"), Some(32));
}
