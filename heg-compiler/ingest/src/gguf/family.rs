//! The supported architectures of GGUF files, each with the changes that llama.cpp's conversion makes.
//!
//! Names and changes are those of `convert_hf_to_gguf.py`; here they are undone, so that tensors have Hugging Face's
//! names and numbers.

use super::super::error::IngestError;
use super::metadata::Metadata;
use super::mistake::GgufMistake;

/// An architecture of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// `model_type` of Hugging Face.
    pub(super) model_type: &'static str,
    /// Tensors of a layer.
    layer: &'static [&'static [(&'static str, &'static str)]],
    /// Order of the rows of q and k.
    pub(super) heads: HeadRows,
    /// Content of the norms' weights.
    pub(super) norms: NormWeights,
    /// Scale of the scores.
    pub(super) query_scale: QueryScale,
}

/// Order of the rows of q and k in a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadRows {
    /// As in Hugging Face: a pair that rotates together is half a head apart.
    Halves,
    /// A pair is two neighbours.
    Neighbours,
}

/// The content of the weights of norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormWeights {
    /// The weight.
    Plain,
    /// The weight plus 1, which the norm of the family adds itself.
    WithOne,
}

/// The source of the scale of the scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryScale {
    /// The size of a head, as the architecture file has it.
    Head,
    /// A separate key in Hugging Face that GGUF does not have. llama.cpp uses the head dimension, but hidden size
    /// divided by heads for the model with this number of layers.
    Named { per_head_layers: u64 },
}

/// A tensor under Hugging Face's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) name: String,
    /// The projection whose rows are in heads: q or k.
    pub(super) heads: Option<Heads>,
    /// Whether it is the weight of a norm.
    pub(super) part: Part,
}

/// The heads that a projection's rows belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    Query,
    Key,
}

/// The part of the model that a tensor belongs to, as far as the conversion changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Norm,
    Other,
}

impl Family {
    /// The family of a file.
    pub(super) fn of(metadata: &Metadata<'_>) -> Result<&'static Self, IngestError> {
        let found = metadata.text(ARCHITECTURE)?;
        let found = metadata.needed(ARCHITECTURE, found, "the name of an architecture")?;
        let family = FAMILIES.iter().find(|family| family.name == found);
        family.ok_or_else(|| {
            let known: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
            IngestError::GgufContent {
                path: metadata.path().to_owned(),
                mistake: GgufMistake::Architecture {
                    found: found.to_owned(),
                    expected: known.join(", "),
                },
            }
        })
    }

    /// The place of a tensor; `None` if the family has no such tensor.
    pub(super) fn place(&self, tensor: &str) -> Option<Placed> {
        let (stem, suffix) = tensor.rsplit_once('.')?;
        if !matches!(suffix, "weight" | "bias") {
            return None;
        }
        if let Some((_, name)) = MODEL.iter().find(|(known, _)| *known == stem) {
            return Some(Placed {
                name: format!("{name}.{suffix}"),
                heads: None,
                part: part_of(stem),
            });
        }
        let (layer, stem) = stem.strip_prefix("blk.")?.split_once('.')?;
        let canonical = layer.parse::<u32>().ok()?.to_string() == layer;
        let names = self.layer.iter().copied().flatten();
        let (known, name) = names.into_iter().find(|(known, _)| *known == stem)?;
        canonical.then(|| Placed {
            name: format!("model.layers.{layer}.{name}.{suffix}"),
            heads: match *known {
                "attn_q" => Some(Heads::Query),
                "attn_k" => Some(Heads::Key),
                _ => None,
            },
            part: part_of(stem),
        })
    }
}

fn part_of(stem: &str) -> Part {
    match stem.ends_with("norm") {
        true => Part::Norm,
        false => Part::Other,
    }
}

/// Whether a tensor belongs to the configuration: factors of rotary frequencies.
pub(super) fn is_setting(tensor: &str) -> bool {
    [ROPE_FREQS, ROPE_LONG, ROPE_SHORT].contains(&tensor)
}

pub(super) const ARCHITECTURE: &str = "general.architecture";

/// Factors of the rotary frequencies of Llama 3.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";
/// Factors of the rotary frequencies beyond the original context, for longrope.
pub(super) const ROPE_LONG: &str = "rope_factors_long.weight";
/// Factors of the rotary frequencies within the original context, for longrope.
pub(super) const ROPE_SHORT: &str = "rope_factors_short.weight";

/// Tensors outside the layers.
const MODEL: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

const ATTENTION: &[(&str, &str)] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
];
const HEAD_NORMS: &[(&str, &str)] = &[
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
];
const MLP: &[(&str, &str)] = &[
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
const NORMS_BEFORE: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];
const NORMS_AFTER: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
const NORMS_BOTH: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
const FUSED: &[(&str, &str)] = &[
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const PLAIN: Family = Family {
    name: "",
    model_type: "",
    layer: &[ATTENTION, MLP, NORMS_BEFORE],
    heads: HeadRows::Halves,
    norms: NormWeights::Plain,
    query_scale: QueryScale::Head,
};

/// Every family. Mistral's models have the architecture `llama`.
const FAMILIES: &[Family] = &[
    Family {
        name: "llama",
        model_type: "llama",
        heads: HeadRows::Neighbours,
        ..PLAIN
    },
    Family {
        name: "qwen2",
        model_type: "qwen2",
        ..PLAIN
    },
    Family {
        name: "qwen3",
        model_type: "qwen3",
        layer: &[ATTENTION, MLP, NORMS_BEFORE, HEAD_NORMS],
        ..PLAIN
    },
    Family {
        name: "gemma2",
        model_type: "gemma2",
        layer: &[ATTENTION, MLP, NORMS_BOTH],
        norms: NormWeights::WithOne,
        query_scale: QueryScale::Named {
            per_head_layers: 46,
        },
        ..PLAIN
    },
    Family {
        name: "gemma3",
        model_type: "gemma3_text",
        layer: &[ATTENTION, MLP, NORMS_BOTH, HEAD_NORMS],
        norms: NormWeights::WithOne,
        query_scale: QueryScale::Named {
            per_head_layers: 62,
        },
        ..PLAIN
    },
    Family {
        name: "phi3",
        model_type: "phi3",
        layer: &[FUSED, NORMS_BEFORE],
        ..PLAIN
    },
    Family {
        name: "granite",
        model_type: "granite",
        heads: HeadRows::Neighbours,
        ..PLAIN
    },
    Family {
        name: "olmo2",
        model_type: "olmo2",
        layer: &[ATTENTION, MLP, NORMS_AFTER, HEAD_NORMS],
        ..PLAIN
    },
    Family {
        name: "smollm3",
        model_type: "smollm3",
        heads: HeadRows::Neighbours,
        ..PLAIN
    },
];
