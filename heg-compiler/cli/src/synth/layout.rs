//! The tensors of each family's checkpoint, by name and shape, from its config.json. The names are the published ones,
//! fused where the family fuses (Phi's `qkv_proj`). Written independently of the compiler's architecture files, so that
//! one checks the other; the golden models' files check this one.

use super::catalogue::Model;
use anyhow::{Context, Result, bail};
use serde_json::Value;

/// One tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) fill: Fill,
    /// Name of its random stream: the tensor's own, except for the copy of a tied tensor.
    pub(super) stream: String,
}

/// Contents of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    Normal,
    Zeros,
    Ones,
}

/// All tensors in the order of PyTorch's module tree.
pub(super) fn tensors(model: &Model) -> Result<Vec<Tensor>> {
    let dims = Dims::read(&model.config)?;
    let embedding = "model.embed_tokens.weight";
    let mut all = vec![dims.matrix(embedding.to_string(), dims.vocab, dims.hidden)];
    for layer in 0..dims.layers {
        let prefix = format!("model.layers.{layer}.");
        all.extend(dims.attention(&prefix));
        all.extend(dims.feed_forward(&prefix));
        all.extend(dims.layer_norms(&prefix));
    }
    all.push(dims.norm("model.norm.weight".to_string(), dims.hidden));
    if !dims.tied || model.stores_tied_head {
        let mut head = dims.matrix("lm_head.weight".to_string(), dims.vocab, dims.hidden);
        if dims.tied {
            head.stream = embedding.to_string();
        }
        all.push(head);
    }
    Ok(all)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// llama, mistral, granite, smollm3: the same tensors with the same names.
    Plain,
    Qwen2,
    Qwen3,
    Phi3,
    Gemma2,
    Gemma3,
    Olmo2,
}

struct Dims {
    family: Family,
    hidden: u64,
    inner: u64,
    layers: u64,
    vocab: u64,
    head: u64,
    q: u64,
    kv: u64,
    tied: bool,
}

impl Dims {
    fn read(config: &Value) -> Result<Self> {
        let number = |key: &str| {
            let value = config.get(key).and_then(Value::as_u64);
            value.with_context(|| format!("config.json: `{key}` is not a number"))
        };
        let family = family(config)?;
        let (hidden, heads) = (number("hidden_size")?, number("num_attention_heads")?);
        let head = match config.get("head_dim") {
            None | Some(Value::Null) => hidden.checked_div(heads).context("no attention heads")?,
            Some(_) => number("head_dim")?,
        };
        let wide = |n: u64| n.checked_mul(head).context("config.json: absurd sizes");
        Ok(Self {
            family,
            hidden,
            head,
            inner: number("intermediate_size")?,
            layers: number("num_hidden_layers")?,
            vocab: number("vocab_size")?,
            q: wide(heads)?,
            kv: wide(number("num_key_value_heads")?)?,
            // Gemma's published files omit the key; the default is tied.
            tied: config
                .get("tie_word_embeddings")
                .and_then(Value::as_bool)
                .unwrap_or(matches!(family, Family::Gemma2 | Family::Gemma3)),
        })
    }

    fn attention(&self, prefix: &str) -> Vec<Tensor> {
        let name = |part: &str| format!("{prefix}self_attn.{part}");
        let (hidden, q, kv) = (self.hidden, self.q, self.kv);
        let mut all = Vec::new();
        if self.family == Family::Phi3 {
            let rows = q.saturating_add(kv.saturating_mul(2));
            all.push(self.matrix(name("qkv_proj.weight"), rows, hidden));
        } else {
            for (part, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
                all.push(self.matrix(name(&format!("{part}.weight")), rows, hidden));
                if self.family == Family::Qwen2 {
                    all.push(vector(name(&format!("{part}.bias")), rows, Fill::Normal));
                }
            }
        }
        all.push(self.matrix(name("o_proj.weight"), hidden, q));
        let norms = match self.family {
            Family::Qwen3 | Family::Gemma3 => Some((self.head, self.head)),
            Family::Olmo2 => Some((q, kv)),
            Family::Plain | Family::Qwen2 | Family::Phi3 | Family::Gemma2 => None,
        };
        if let Some((of_q, of_k)) = norms {
            all.push(self.norm(name("q_norm.weight"), of_q));
            all.push(self.norm(name("k_norm.weight"), of_k));
        }
        all
    }

    fn feed_forward(&self, prefix: &str) -> Vec<Tensor> {
        let name = |part: &str| format!("{prefix}mlp.{part}.weight");
        let down = self.matrix(name("down_proj"), self.hidden, self.inner);
        if self.family == Family::Phi3 {
            let rows = self.inner.saturating_mul(2);
            return vec![self.matrix(name("gate_up_proj"), rows, self.hidden), down];
        }
        vec![
            self.matrix(name("gate_proj"), self.inner, self.hidden),
            self.matrix(name("up_proj"), self.inner, self.hidden),
            down,
        ]
    }

    fn layer_norms(&self, prefix: &str) -> Vec<Tensor> {
        let names: &[&str] = match self.family {
            Family::Gemma2 | Family::Gemma3 => &[
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ],
            Family::Olmo2 => &["post_attention_layernorm", "post_feedforward_layernorm"],
            Family::Plain | Family::Qwen2 | Family::Qwen3 | Family::Phi3 => {
                &["input_layernorm", "post_attention_layernorm"]
            }
        };
        let named = names.iter().map(|name| format!("{prefix}{name}.weight"));
        named.map(|name| self.norm(name, self.hidden)).collect()
    }

    fn matrix(&self, name: String, rows: u64, columns: u64) -> Tensor {
        Tensor {
            stream: name.clone(),
            name,
            shape: vec![rows, columns],
            fill: Fill::Normal,
        }
    }

    /// A norm that multiplies by 1: Gemma stores the weight minus one.
    fn norm(&self, name: String, length: u64) -> Tensor {
        let fill = match self.family {
            Family::Gemma2 | Family::Gemma3 => Fill::Zeros,
            Family::Plain | Family::Qwen2 | Family::Qwen3 | Family::Phi3 | Family::Olmo2 => {
                Fill::Ones
            }
        };
        vector(name, length, fill)
    }
}

fn vector(name: String, length: u64, fill: Fill) -> Tensor {
    Tensor {
        stream: name.clone(),
        name,
        shape: vec![length],
        fill,
    }
}

fn family(config: &Value) -> Result<Family> {
    Ok(match config.get("model_type").and_then(Value::as_str) {
        Some("llama" | "mistral" | "granite" | "smollm3") => Family::Plain,
        Some("qwen2") => Family::Qwen2,
        Some("qwen3") => Family::Qwen3,
        Some("phi3") => Family::Phi3,
        Some("gemma2") => Family::Gemma2,
        Some("gemma3_text") => Family::Gemma3,
        Some("olmo2") => Family::Olmo2,
        other => bail!("config.json: no layout for model_type {other:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::*;
    use std::collections::BTreeMap;

    type Shapes = BTreeMap<String, Vec<u64>>;

    fn shapes(tensors: Vec<Tensor>) -> Shapes {
        tensors.into_iter().map(|t| (t.name, t.shape)).collect()
    }

    /// Every family's tensors equal those of its golden model, which the real library wrote.
    #[test]
    fn names_and_shapes_are_those_of_real_files() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/golden");
        let mut families = 0;
        for entry in std::fs::read_dir(golden).unwrap() {
            let dir = entry.unwrap().path();
            // Encoders are not synthesised.
            if dir.ends_with("bert") || dir.ends_with("bert_reranker") {
                continue;
            }
            let config = std::fs::read(dir.join("config.json")).unwrap();
            let model = Model {
                config: serde_json::from_slice(&config).unwrap(),
                stores_tied_head: false,
            };
            let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let real: Shapes = file
                .iter()
                .map(|(name, t)| (name.into(), t.shape().iter().map(|n| *n as u64).collect()))
                .collect();
            let ours = shapes(tensors(&model).unwrap());
            assert_eq!(ours, real, "{}", dir.display());
            families += 1;
        }
        assert_eq!(families, 10);
    }

    /// Parameter counts as published, with tied tensors counted once (Hugging Face's model pages).
    #[test]
    fn parameter_counts_are_the_published_ones() {
        let published = [
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3.2-3b", 3_212_749_824),
            ("llama-3.1-8b", 8_030_261_248),
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen2.5-1.5b", 1_543_714_304),
            ("qwen3-0.6b", 751_632_384),
            ("qwen3-4b", 4_022_468_096),
            ("phi-4-mini", 3_836_021_760),
            ("mistral-7b", 7_248_023_552),
            ("gemma-2-2b", 2_614_341_888),
            ("gemma-3-1b", 999_885_952),
            ("smollm3-3b", 3_075_098_624),
            ("olmo-2-7b", 7_298_617_344),
            ("granite-3.1-2b", 2_533_531_648),
        ];
        for (name, expected) in published {
            let all = tensors(&catalogue::find(name).unwrap()).unwrap();
            let count: u64 = all.iter().map(|t| t.shape.iter().product::<u64>()).sum();
            assert_eq!(count, expected, "{name}");
        }
    }
}
