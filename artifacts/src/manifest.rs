//! The manifest: a bundle's description of itself, as RON.
//!
//! It holds the HEG (kernels, their variants, the per-layer table of weights), the text assets and the
//! provenance, and the list of sections that carry the bytes. It never holds a path, a host name or a
//! time, so that the same inputs give the same manifest on any machine.
//!
//! A kernel is stored once however often it is used: [`Manifest::layers`] gives, per layer, its kernels and their
//! weights. Readers must not trust these types by themselves: [`crate::Bundle`] checks every reference once, on
//! opening, so that all other code can index without checks.

mod gpu;
mod graph;
mod kernel;
mod piece;
mod state;
mod variant;

use std::collections::BTreeMap;

use heg_spec::{GroupColumns, Pooling, ScoreForm, Sight, VectorLength, WeightForm};
use serde::{Deserialize, Serialize};

use crate::content_id::SectionId;

pub use gpu::{GPU_BYTES_MAX, GpuModule, GpuPart};
pub use graph::{Crossing, EdgeReach, GraphEdge, GraphNode, StageGraph, StageGraphs};
pub use kernel::{Kernel, Parameter, Port, Role, Rows, Term, Work};
pub use piece::{PIECE_TOKENS_MAX, PIECES_MAX, RowsForm, RowsPiece};
pub use state::{
    BEGINNING_BYTES_MAX, BakedState, STATE_HEAD_BYTES, STATE_NAME_MAX, STATES_MAX, StateForm,
};
pub use variant::{
    Binding, Blob, CACHE_GROUP, Compatibility, ElementType, Elements, ShapeClass, Variant,
};

/// Revision of the manifest's content. A reader accepts this revision and earlier ones.
pub const MANIFEST_REVISION: u32 = 1;

/// The root of a bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// See [`MANIFEST_REVISION`].
    pub revision: u32,
    /// Dimensions and limits of the model.
    pub model: Model,
    /// Tokenizer, chat template and special tokens.
    pub text: Text,
    /// The token embedding, gathered by the runtime itself.
    pub embedding: Embedding,
    /// The vectors that the model gives for texts in place of logits, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<TextVectors>,
    /// Rotary tables, by [`RopeId`].
    pub rope: Vec<RopeTable>,
    /// All weights, by [`WeightId`].
    pub weights: Vec<Weight>,
    /// Pool of the small constants (axes, shapes, factors) that IRs refer to as `offset="@c+N"`, N in bytes.
    pub literals: SectionId,
    /// Op groups with their variants, by [`KernelId`].
    pub kernels: Vec<Kernel>,
    /// One entry per decoder layer, in order.
    pub layers: Vec<Layer>,
    /// Final norm and output projection, run on the last rows only.
    pub head: KernelUse,
    /// The order in which kernels run, and the data between them.
    pub heg: StageGraphs,
    /// The question behind the known answers, if the bundle has any.
    #[serde(default)]
    pub known_answers: Option<KnownAnswers>,
    /// Speed of each variant on each device: a RON document whose types are those of `heg-profiler`. A bundle
    /// runs without it.
    #[serde(default)]
    pub annotations: Option<SectionId>,
    /// Cuts of products between two devices, per machine: a RON document whose types are those of `heg-profiler`. A
    /// bundle runs without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<SectionId>,
    /// Pieces of products for NPUs that share these by a partition, ascending. A bundle runs without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<RowsPiece>,
    /// Modules for GPUs. A bundle runs without them, by those of the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuPart>,
    /// Keys and values of prompts' beginnings, by name, ascending. A bundle runs without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<BakedState>,
    /// Origin of the bundle.
    pub provenance: Provenance,
    /// Every section, in file order. Identifiers are unique.
    pub sections: Vec<Section>,
}

/// Dimensions and limits of the model, as the runtime needs them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name of the bundle.
    pub name: String,
    /// Name of the architecture file, e.g. `llama`.
    pub architecture: String,
    /// Storage form of the weights.
    pub weights: WeightForm,
    /// Hidden size D.
    pub hidden: u32,
    /// Query heads H.
    pub heads: u32,
    /// Key/value heads K.
    pub kv_heads: u32,
    /// Head dimension d.
    pub head_dim: u32,
    /// Vocabulary size V.
    pub vocab: u32,
    /// Longest context, in tokens (prompt and answer together).
    pub context_tokens: u32,
    /// Chunk sizes (tokens) for which static variants exist, ascending.
    pub chunk_tokens: Vec<u32>,
    /// Number of parameters.
    pub parameters: u64,
}

/// Text assets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// `tokenizer.json`, unchanged.
    pub tokenizer: Option<SectionId>,
    /// The Jinja chat template.
    pub chat_template: Option<SectionId>,
    /// Special tokens by their Hugging Face key (`bos_token`, `eos_token`, …), for the template.
    pub special_tokens: BTreeMap<String, String>,
    /// Tokens that end generation.
    pub eos_ids: Vec<u32>,
}

/// The vectors of a model that gives one for each text: its head has a row of them for each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextVectors {
    /// The way from rows to the vector.
    pub pooling: Pooling,
    /// Length of the vector.
    pub length: VectorLength,
    /// The tokens that a token of a text sees. A text whose tokens see all of it runs in one piece.
    pub sight: Sight,
    /// For a model whose vectors have one element, the score of a text: its form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<ScoreForm>,
}

impl TextVectors {
    /// Elements of a vector, for a model with hidden states of `hidden` elements.
    pub fn width(&self, hidden: u32) -> u32 {
        match self.scores {
            Some(_) => 1,
            None => hidden,
        }
    }
}

/// The token embedding: `x[c, D] = scale · table[ids]`, and to that the rows of token types and positions, in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Table of shape [V, D].
    pub table: WeightId,
    /// Factor after the look-up; 1 for families without one.
    pub scale: f32,
    /// Learned positions of shape [rows, D] in f32, a row for each position of the context, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<WeightId>,
    /// Learned kinds of texts of shape [rows, D] in f32, if there are any; the first is added, and the second to tokens
    /// of a pair's second text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_types: Option<WeightId>,
}

/// Precomputed rotary factors: two f32 tables of shape [rows, width], row = position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeTable {
    /// Number of positions.
    pub rows: u32,
    /// Half the rotated dimensions: each factor serves a pair.
    pub width: u32,
    /// Cosines.
    pub cos: SectionId,
    /// Sines.
    pub sin: SectionId,
}

/// One stored weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Hugging Face name, followed by a row range if a fused tensor was split.
    pub name: String,
    /// Element type of `values`.
    pub element: ElementType,
    /// Row-major shape; one or two dimensions.
    pub shape: Vec<u32>,
    /// The elements.
    pub values: SectionId,
    /// For 4-bit integers: the number of neighbouring columns that share a scale, a divisor of the columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_columns: Option<GroupColumns>,
    /// Factors, for integers only, row-major: one f32 per row, or for 4-bit integers one f16 per group.
    pub scales: Option<SectionId>,
    /// Terms of centred integers, in the same number and type as `scales`: q stands for `scale · q + centre`, without
    /// them for `scale · q`. [`ElementType::U4`] always has them, [`ElementType::I4`] never.
    pub centres: Option<SectionId>,
    /// blake3 of the source tensor's bytes.
    pub source: SectionId,
}

impl Weight {
    /// The weight's sections, in the order in which IRs number them.
    pub fn sections(&self) -> impl Iterator<Item = SectionId> + use<> {
        let values = std::iter::once(self.values);
        values.chain(self.scales).chain(self.centres)
    }
}

/// The kernels of one layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Query, key and value projections.
    pub qkv: KernelUse,
    /// Attention.
    pub mha: KernelUse,
    /// The rest of the layer, from the output projection on.
    pub ffn: KernelUse,
}

/// A kernel with the weights of one place in the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelUse {
    /// The kernel.
    pub kernel: KernelId,
    /// Its weights, in the order of [`Kernel::parameters`].
    pub weights: Vec<WeightId>,
    /// Rotary table of this place, if the kernel takes one.
    pub rope: Option<RopeId>,
    /// Outputs for the inputs that [`Manifest::known_answers`] describes, in port order,
    /// each as f32 [rows, width].
    #[serde(default)]
    pub answer: Option<SectionId>,
}

/// The question whose answers are known. The compiler computed the answers in f32 from the stored weights for every
/// place of the model, so that a device that computes wrongly is detected. The inputs are not stored; they follow from
/// these numbers, see [`KnownAnswers::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownAnswers {
    /// Seed of the inputs.
    pub seed: u64,
    /// Tokens of the call, c.
    pub rows: u32,
    /// Rows of the KV cache, the call's own included, n.
    pub context: u32,
}

/// Index into [`Manifest::kernels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelId(pub u32);

/// Index into [`Manifest::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightId(pub u32);

/// Index into [`Manifest::rope`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RopeId(pub u32);

/// Versions of the compilers and hashes of the source files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Version of the compiler.
    pub compiler: String,
    /// OpenVINO release whose IR is written.
    pub openvino: String,
    /// OpenVINO build whose NPU compiler made the blobs, if there are any.
    #[serde(default)]
    pub npu_compiler: Option<String>,
    /// blake3 of each input file that is not a weight, by name.
    pub inputs: BTreeMap<String, SectionId>,
}

/// A run of bytes in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// blake3 of the bytes.
    pub id: SectionId,
    /// Length without padding.
    pub bytes: u64,
}
