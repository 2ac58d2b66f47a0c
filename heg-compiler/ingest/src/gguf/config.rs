//! The configuration of a GGUF file, with Hugging Face's keys.
//!
//! No later code can tell that it was not a `config.json`. Numbers that are in llama.cpp's code and not in the file
//! (Gemma's query scale, every fourth layer of SmolLM 3) are also set here.

use serde_json::{Map, Value, json};

use super::super::error::IngestError;
use super::family::{Family, QueryScale};
use super::metadata::Metadata;
use super::mistake::GgufMistake;
use super::rope;
use super::tensors::Tensors;

/// A configuration under construction.
pub(super) struct Settings<'m, 'a> {
    pub(super) metadata: &'m Metadata<'a>,
    pub(super) family: &'static Family,
    pub(super) file: &'a [u8],
    pub(super) tensors: &'m Tensors,
    pub(super) keys: Map<String, Value>,
}

/// Returns the configuration of a file whose tensors have been checked.
pub(super) fn read<'a>(
    metadata: &Metadata<'a>,
    family: &'static Family,
    file: &'a [u8],
    tensors: &Tensors,
) -> Result<Map<String, Value>, IngestError> {
    let mut settings = Settings {
        metadata,
        family,
        file,
        tensors,
        keys: Map::new(),
    };
    settings.set("model_type", json!(family.model_type));
    settings.sizes()?;
    settings.presence();
    settings.windows()?;
    settings.scales()?;
    rope::settings(&mut settings)?;
    Ok(settings.keys)
}

/// Refuses a GGUF file that is not a whole model.
pub(super) fn check_whole(metadata: &Metadata<'_>) -> Result<(), IngestError> {
    let refuse = |mistake| {
        Err(IngestError::GgufContent {
            path: metadata.path().to_owned(),
            mistake,
        })
    };
    match metadata.text("general.type")? {
        None | Some("model") => {}
        Some(found) => {
            let found = found.chars().take(40).collect();
            return refuse(GgufMistake::NoModel { found });
        }
    }
    match metadata.u64("split.count")? {
        None | Some(0 | 1) => Ok(()),
        Some(count) => refuse(GgufMistake::Split { count }),
    }
}

impl Settings<'_, '_> {
    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.keys.insert(key.to_owned(), value);
    }

    /// The full name of an architecture's key.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name)
    }

    pub(super) fn count(&self, name: &str) -> Result<Option<u64>, IngestError> {
        self.metadata.u64(&self.key(name))
    }

    pub(super) fn count_needed(&self, name: &str) -> Result<u64, IngestError> {
        let found = self.count(name)?;
        let expected = "a whole number that is not negative";
        self.metadata.needed(&self.key(name), found, expected)
    }

    /// A number as the shortest decimal that gives the same f32, as it was in `config.json`.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, IngestError> {
        Ok(self.metadata.f32(&self.key(name))?.map(decimal))
    }

    fn number_needed(&self, name: &str) -> Result<f64, IngestError> {
        let found = self.number(name)?;
        self.metadata
            .needed(&self.key(name), found, "a finite number")
    }

    /// The error for a key with a value that this architecture does not have.
    pub(super) fn wrong(&self, name: &str, expected: &'static str) -> IngestError {
        self.metadata.wrong(&self.key(name), expected)
    }

    fn sizes(&mut self) -> Result<(), IngestError> {
        let heads = self.count_needed("attention.head_count")?;
        let hidden = self.count_needed("embedding_length")?;
        let head = self.head_dim(hidden, heads)?;
        let value = self.count("attention.value_length")?;
        if value.is_some_and(|value| Some(value) != head) {
            return Err(self.wrong("attention.value_length", "the same as `key_length`"));
        }
        if self.count("expert_count")?.is_some_and(|count| count > 0) {
            return Err(self.wrong("expert_count", "0: mixtures of experts are not compiled"));
        }
        let kv_heads = self.count("attention.head_count_kv")?.unwrap_or(heads);
        let sizes = [
            ("hidden_size", hidden),
            ("num_hidden_layers", self.count_needed("block_count")?),
            (
                "intermediate_size",
                self.count_needed("feed_forward_length")?,
            ),
            (
                "max_position_embeddings",
                self.count_needed("context_length")?,
            ),
            ("num_attention_heads", heads),
            ("num_key_value_heads", kv_heads),
        ];
        for (key, size) in sizes {
            self.set(key, json!(size));
        }
        if let Some(head) = head {
            self.set("head_dim", json!(head));
        }
        let eps = self.number_needed("attention.layer_norm_rms_epsilon")?;
        self.set("rms_norm_eps", json!(eps));
        let embedding = self.tensors.by_name.get("token_embd.weight");
        let rows = embedding.and_then(|described| described.shape.first());
        let rows = rows.copied().ok_or_else(|| IngestError::MissingTensor {
            name: "token_embd.weight".to_owned(),
            nearest: None,
        })?;
        self.set("vocab_size", json!(rows));
        Ok(())
    }

    fn head_dim(&self, hidden: u64, heads: u64) -> Result<Option<u64>, IngestError> {
        let found = self.count("attention.key_length")?;
        let even = || (heads > 0 && hidden.is_multiple_of(heads)).then(|| hidden / heads);
        Ok(found.or_else(even))
    }

    pub(super) fn head(&self) -> u64 {
        self.keys
            .get("head_dim")
            .and_then(Value::as_u64)
            .unwrap_or(0)
    }

    /// Sets the keys that follow from the presence of tensors.
    fn presence(&mut self) {
        let has = |name: &str| self.tensors.by_name.contains_key(name);
        let settings = [
            ("tie_word_embeddings", !has("output.weight")),
            ("attention_bias", has("blk.0.attn_q.bias")),
            ("mlp_bias", has("blk.0.ffn_gate.bias")),
        ];
        for (key, value) in settings {
            self.set(key, json!(value));
        }
    }

    fn windows(&mut self) -> Result<(), IngestError> {
        const WINDOW: &str = "attention.sliding_window";
        let window = self.count(WINDOW)?.filter(|window| *window > 0);
        match (self.family.name, window) {
            ("gemma2", window) => self.alternating(Some(window.unwrap_or(4096)), 2),
            ("gemma3", window) => self.alternating(window, 6),
            (_, None) => Ok(()),
            ("llama", Some(window)) => {
                // Mistral's models have the architecture `llama`.
                self.set("model_type", json!("mistral"));
                self.set("sliding_window", json!(window));
                Ok(())
            }
            ("phi3", Some(window)) => {
                self.set("sliding_window", json!(window));
                Ok(())
            }
            (_, Some(_)) => Err(self.wrong(WINDOW, "no window in this architecture")),
        }
    }

    /// Sets layers with and without a window; each `every`-th is without, unless the file says otherwise.
    fn alternating(&mut self, window: Option<u64>, every: u64) -> Result<(), IngestError> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        let layers = self.count_needed("block_count")?;
        let key = self.key(PATTERN);
        let sliding: Vec<bool> = match (window, self.metadata.i32s(&key)) {
            (None, _) => Vec::new(),
            (Some(_), Ok(Some(said))) => {
                if said.len() as u64 != layers {
                    return Err(self.metadata.wrong(&key, "as many as there are layers"));
                }
                said.iter().map(|layer| *layer != 0).collect()
            }
            (Some(_), _) => {
                let every = self.metadata.u64(&key)?.unwrap_or(every);
                let layers = layers.min(LAYERS_MAX);
                (1..=layers)
                    .map(|layer| every == 0 || !layer.is_multiple_of(every))
                    .collect()
            }
        };
        let Some(window) = window else {
            let layers = usize::try_from(layers.min(LAYERS_MAX)).unwrap_or(0);
            self.set("layer_types", json!(vec![FULL; layers]));
            return Ok(());
        };
        let types = sliding
            .iter()
            .map(|layer| if *layer { SLIDING } else { FULL });
        self.set("layer_types", json!(types.collect::<Vec<_>>()));
        self.set("sliding_window", json!(window));
        Ok(())
    }

    /// Sets caps and factors.
    fn scales(&mut self) -> Result<(), IngestError> {
        match self.family.name {
            "gemma2" => {
                let attention = self.number("attn_logit_softcapping")?.unwrap_or(50.0);
                let last = self.number("final_logit_softcapping")?.unwrap_or(30.0);
                self.set("attn_logit_softcapping", json!(attention));
                self.set("final_logit_softcapping", json!(last));
            }
            "gemma3" => {
                let cap = self.number("final_logit_softcapping")?;
                if let Some(cap) = cap.filter(|cap| *cap != 0.0) {
                    self.set("final_logit_softcapping", json!(cap));
                }
            }
            "granite" => self.granite()?,
            _ => {}
        }
        if let QueryScale::Named { per_head_layers } = self.family.query_scale {
            let per_head = self.count_needed("block_count")? == per_head_layers;
            let hidden = self.count_needed("embedding_length")?;
            let heads = self.count_needed("attention.head_count")?;
            let scalar = match (per_head, hidden.checked_div(heads)) {
                (true, Some(scalar)) => scalar,
                _ => self.head(),
            };
            self.set("query_pre_attn_scalar", json!(scalar));
        }
        Ok(())
    }

    fn granite(&mut self) -> Result<(), IngestError> {
        for (name, key) in [
            ("attention.scale", "attention_multiplier"),
            ("logit_scale", "logits_scaling"),
        ] {
            let factor = self.number_needed(name)?;
            self.set(key, json!(factor));
        }
        for (name, key) in [
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
        ] {
            if let Some(factor) = self.number(name)? {
                self.set(key, json!(factor));
            }
        }
        let finetuned = self.key("rope.scaling.finetuned");
        if self.metadata.boolean(&finetuned)? == Some(false) {
            return Err(self
                .metadata
                .wrong(&finetuned, "true: layers without rotary are not compiled"));
        }
        Ok(())
    }
}

/// The shortest decimal that reads as this f32, as an f64.
pub(super) fn decimal(number: f32) -> f64 {
    number
        .to_string()
        .parse()
        .unwrap_or_else(|_| f64::from(number))
}

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Largest number of layers that are listed. Chosen: beyond it the architecture refuses the count itself.
const LAYERS_MAX: u64 = 4096;
