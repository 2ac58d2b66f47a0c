//! The kinds of the keys of `config.json`: counts, numbers or texts.
//!
//! Only kinds are checked, and only of keys with the same meaning in every family: a negative count or a text in place
//! of a number is refused here, so that it cannot pass for an absent key later. Whether a value makes sense for a model
//! is not checked here.

use std::path::Path;

use serde_json::{Map, Value};

use super::config_json::{value_at, whole, wrong_value};
use super::error::IngestError;

/// Checks that every known key that is present has its kind.
pub(super) fn check_kinds(path: &Path, keys: &Map<String, Value>) -> Result<(), IngestError> {
    for (kind, names) in KINDS {
        for name in *names {
            if let Some(value) = value_at(keys, name)
                && !kind.holds(value)
            {
                return Err(wrong_value(path, name, value, kind.expected()));
            }
        }
    }
    Ok(())
}

/// The kind of a key's value.
#[derive(Clone, Copy)]
enum Kind {
    Count,
    Number,
    Text,
    Boolean,
    List,
    Numbers,
}

impl Kind {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::Count => whole(value).is_some_and(|number| number >= 0),
            Self::Number => value.is_number(),
            Self::Text => value.is_string(),
            Self::Boolean => value.is_boolean(),
            Self::List => value.is_array(),
            Self::Numbers => value
                .as_array()
                .is_some_and(|items| items.iter().all(Value::is_number)),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Count => "a whole number that is not negative",
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Boolean => "true or false",
            Self::List => "a list",
            Self::Numbers => "a list of numbers",
        }
    }
}

/// The keys of the families that this project compiles, as transformers 4.57 documents them.
const KINDS: &[(Kind, &[&str])] = &[
    (
        Kind::Count,
        &[
            "head_dim",
            "hidden_size",
            "intermediate_size",
            "max_position_embeddings",
            "max_window_layers",
            "no_rope_layer_interval",
            "num_attention_heads",
            "num_hidden_layers",
            "num_key_value_heads",
            "original_max_position_embeddings",
            "rope_scaling.original_max_position_embeddings",
            "sliding_window",
            "sliding_window_pattern",
            "type_vocab_size",
            "vocab_size",
        ],
    ),
    (
        Kind::Number,
        &[
            "attention_multiplier",
            "attn_logit_softcapping",
            "embedding_multiplier",
            "final_logit_softcapping",
            "layer_norm_eps",
            "logits_scaling",
            "partial_rotary_factor",
            "query_pre_attn_scalar",
            "residual_multiplier",
            "rms_norm_eps",
            "rope_local_base_freq",
            "rope_scaling.attention_factor",
            "rope_scaling.beta_fast",
            "rope_scaling.beta_slow",
            "rope_scaling.factor",
            "rope_scaling.high_freq_factor",
            "rope_scaling.low_freq_factor",
            "rope_theta",
        ],
    ),
    (
        Kind::Text,
        &[
            "hidden_act",
            "hidden_activation",
            "model_type",
            "rope_scaling.rope_type",
        ],
    ),
    (
        Kind::Boolean,
        &[
            "attention_bias",
            "mlp_bias",
            "tie_word_embeddings",
            "use_sliding_window",
        ],
    ),
    (Kind::List, &["architectures", "layer_types"]),
    (
        Kind::Numbers,
        &[
            "no_rope_layers",
            "rope_scaling.long_factor",
            "rope_scaling.short_factor",
        ],
    ),
];
