//! Model files: the source and the options of a bundle.

use std::path::PathBuf;

use serde::Deserialize;

use crate::error::SpecError;
use crate::source::{Problems, Source};
use crate::vocabulary::{KvForm, NpuPlatform, WeightForm};

/// One bundle to build.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Name of the bundle.
    pub name: String,
    /// Hugging Face folder; relative paths start at the model file's folder.
    pub source: PathBuf,
    /// Architecture by name; if absent, the one whose `model_types` has the config's `model_type`.
    #[serde(default)]
    pub architecture: Option<String>,
    /// Weight form.
    #[serde(default = "default_weights")]
    pub weights: WeightForm,
    /// Form of keys and values that CPU programs keep beside integer weights.
    #[serde(default)]
    pub kv: KvForm,
    /// Longest context in tokens; if absent, the model's own limit up to [`CONTEXT_TOKENS_DEFAULT`].
    #[serde(default)]
    pub context_tokens: Option<u32>,
    /// Fusion plan by name.
    #[serde(default = "default_fusion")]
    pub fusion: String,
    /// Candidate chunk sizes of static variants, in tokens, ascending.
    #[serde(default = "default_chunks")]
    pub chunk_tokens: Vec<u32>,
    /// NPU platforms, from [`NpuPlatform::KNOWN`], that static variants are compiled for ahead of time.
    #[serde(default)]
    pub npu_platforms: Vec<NpuPlatform>,
    /// Rows of the KV cache that static attention is compiled for, ascending; those beyond the context become one of
    /// the whole context.
    #[serde(default = "default_buckets")]
    pub mha_context_tokens: Vec<u32>,
}

/// Longest context that is compiled by default. Chosen, not measured: rotary tables of this length take 8 MiB at a head
/// dimension of 64.
pub const CONTEXT_TOKENS_DEFAULT: u32 = 32_768;

impl ModelSpec {
    /// Parses and checks a model file.
    pub fn parse(source: Source<'_>) -> Result<Self, SpecError> {
        let spec: Self = source.parse()?;
        let mut problems = Problems::new(source);
        for (field, sizes) in [
            ("chunk_tokens", &spec.chunk_tokens),
            ("mha_context_tokens", &spec.mha_context_tokens),
        ] {
            let ascending = sizes.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascending || sizes.contains(&0) {
                let message =
                    format!("expected `{field}` to be positive and ascending, found {sizes:?}");
                problems.push(field, message);
            }
        }
        for (index, platform) in spec.npu_platforms.iter().enumerate() {
            if let Err(unknown) = platform.check() {
                problems.push(&format!("npu_platforms.{index}"), unknown.to_string());
            }
        }
        problems.finish(spec)
    }

    /// The spec of a bare Hugging Face folder.
    pub fn of_folder(name: String, source: PathBuf) -> Self {
        Self {
            name,
            source,
            architecture: None,
            weights: default_weights(),
            kv: KvForm::default(),
            context_tokens: None,
            fusion: default_fusion(),
            chunk_tokens: default_chunks(),
            npu_platforms: Vec::new(),
            mha_context_tokens: default_buckets(),
        }
    }
}

fn default_weights() -> WeightForm {
    WeightForm::W8A16
}

fn default_fusion() -> String {
    "agent-xpu".to_owned()
}

/// DESIGN §4.4: the array saturates at 32; 256 is the chunk of the paper; 512 is past the preemption bound
/// for the larger models.
fn default_chunks() -> Vec<u32> {
    vec![32, 64, 128, 256, 512]
}

/// Powers of two, so that padding at most doubles the work; 4096 is the longest context that Agent.xpu evaluates.
fn default_buckets() -> Vec<u32> {
    vec![512, 1024, 2048, 4096]
}
