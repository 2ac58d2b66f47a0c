//! The manifest: everything a bundle says about itself, as RON.
//!
//! It holds the HEG (kernels, their variants, the per-layer table of weights), the text assets and the
//! provenance, and the list of sections that carry the bytes. It never holds a path, a host name or a
//! time, so that the same inputs give the same manifest on any machine.
//!
//! A kernel is stored once with its multiplicity: [`Manifest::layers`] says, per layer, which kernel it
//! uses and with which weights. What reads these types must not trust them: [`crate::Bundle`] checks every
//! reference once, on opening, so that the rest of the house can index without asking.

use std::collections::BTreeMap;

use heg_spec::{DeviceClass, Group, NpuPlatform, WeightForm};
use serde::{Deserialize, Serialize};

use crate::content_id::SectionId;

/// Revision of the manifest's content. A reader accepts this revision and older ones.
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
    /// How the known answers of all places were asked for, where the bundle has any.
    #[serde(default)]
    pub known_answers: Option<KnownAnswers>,
    /// What is known of the speed of each variant on each device: a RON document whose types are those of
    /// `heg-profiler`. A bundle runs without it.
    #[serde(default)]
    pub annotations: Option<SectionId>,
    /// Where the bundle came from.
    pub provenance: Provenance,
    /// Every section, in file order. Identifiers are unique.
    pub sections: Vec<Section>,
}

/// Dimensions and limits of the model, as the runtime needs them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name the bundle goes by.
    pub name: String,
    /// Architecture file that described it, e.g. `llama`.
    pub architecture: String,
    /// How weights are stored.
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
    /// `tokenizer.json` as it was.
    pub tokenizer: Option<SectionId>,
    /// The Jinja chat template.
    pub chat_template: Option<SectionId>,
    /// Special tokens by their Hugging Face key (`bos_token`, `eos_token`, …), for the template.
    pub special_tokens: BTreeMap<String, String>,
    /// Tokens that end generation.
    pub eos_ids: Vec<u32>,
}

/// The token embedding: `x[c, D] = scale · table[ids]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Table of shape [V, D].
    pub table: WeightId,
    /// Factor after the look-up (1 where the family has none).
    pub scale: f32,
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
    /// Hugging Face name, with a row range behind it where a fused tensor was split.
    pub name: String,
    /// Element type of `values`.
    pub element: ElementType,
    /// Row-major shape; one or two dimensions.
    pub shape: Vec<u32>,
    /// The elements.
    pub values: SectionId,
    /// One f32 factor per row; present exactly when `element` is [`ElementType::I8`].
    pub scales: Option<SectionId>,
    /// blake3 of the source tensor's bytes.
    pub source: SectionId,
}

/// Element types that reach a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ElementType {
    /// 8-bit signed integer.
    I8,
    /// 16-bit float.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 32-bit float.
    F32,
    /// 64-bit signed integer.
    I64,
}

impl ElementType {
    /// Size of one element, in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::I8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::I64 => 8,
        }
    }
}

/// An op group: the unit of mapping, preemption and annotation (Agent.xpu §4.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Unique name, e.g. `qkv` or `qkv.1` where layers differ.
    pub name: String,
    /// Which part of a layer it computes.
    pub group: Group,
    /// Operators it was fused from, in order.
    pub ops: Vec<String>,
    /// Activation inputs, in port order. Weight inputs of [`Binding::Input`] variants follow them.
    pub inputs: Vec<Port>,
    /// Outputs, in port order.
    pub outputs: Vec<Port>,
    /// Weights it takes, in order: the shape of every [`KernelUse::weights`].
    pub parameters: Vec<Parameter>,
    /// Work of one call.
    pub work: Work,
    /// Realisations, of which the runtime binds one per device.
    pub variants: Vec<Variant>,
}

/// One activation tensor at a kernel's boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// What the runtime binds here.
    pub role: Role,
    /// Number of rows.
    pub rows: Rows,
    /// Elements per row.
    pub width: u32,
}

/// What a port carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Residual stream x[c, D].
    Hidden,
    /// Rotary cosines of the tokens' positions.
    Cos,
    /// Rotary sines of the tokens' positions.
    Sin,
    /// Queries q[c, H·d].
    Query,
    /// Keys k[·, K·d]: new rows as an output, the cache as an input.
    Key,
    /// Values v[·, K·d]: new rows as an output, the cache as an input.
    Value,
    /// Position of the first token, `i64[1]`.
    Position,
    /// Attention output a[c, H·d].
    Attended,
    /// Logits[b, V].
    Logits,
}

/// Number of rows of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rows {
    /// c, the tokens of this call (b for the head).
    Tokens,
    /// n, the tokens visible in the KV cache.
    Context,
    /// Exactly one.
    One,
}

/// One weight a kernel takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Name within the kernel, e.g. `q_proj`.
    pub name: String,
    /// Element type of the values.
    pub element: ElementType,
    /// Row-major shape.
    pub shape: Vec<u32>,
}

/// Work of one call, as polynomials over c (tokens) and n (visible context).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Floating-point operations (a multiply-add counts two).
    pub flops: Vec<Term>,
    /// Bytes read and written: weights once, activations at the kernel's boundary.
    pub bytes: Vec<Term>,
}

/// `factor · c^tokens · n^context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Coefficient.
    pub factor: u64,
    /// Exponent of c.
    pub tokens: u8,
    /// Exponent of n.
    pub context: u8,
}

impl Work {
    /// Floating-point operations of a call with `tokens` new tokens and `context` visible ones.
    pub fn flops(&self, tokens: u64, context: u64) -> f64 {
        evaluate(&self.flops, tokens, context)
    }

    /// Bytes moved by a call with `tokens` new tokens and `context` visible ones.
    pub fn bytes(&self, tokens: u64, context: u64) -> f64 {
        evaluate(&self.bytes, tokens, context)
    }
}

fn evaluate(terms: &[Term], tokens: u64, context: u64) -> f64 {
    terms
        .iter()
        .map(|term| {
            term.factor as f64
                * (tokens as f64).powi(i32::from(term.tokens))
                * (context as f64).powi(i32::from(term.context))
        })
        .sum()
}

/// A realisation of a kernel: device class × shape class × weight binding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Class of device it is meant for.
    pub device: DeviceClass,
    /// Which token counts it accepts.
    pub shape: ShapeClass,
    /// How weights reach it.
    pub binding: Binding,
    /// Element type of its activation ports: see [`port_element`](Self::port_element).
    pub activations: ElementType,
    /// Element type of keys and values, where it is not that of the other activations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<ElementType>,
    /// OpenVINO IR (XML). [`Binding::Constant`] refers to its weights as `offset="@k"`, where k counts the
    /// sections of the [`KernelUse`]: values, then scales where there are any, weight after weight. Input
    /// binding takes the same list as inputs behind the activation ports. Either kind finds its small
    /// constants at `offset="@c+N"`, N bytes into [`Manifest::literals`]. Each is followed by ` size="S"/>`, S bytes that
    /// are within the section; a runtime refuses attributes `offset` and `size` of any other form.
    pub ir: SectionId,
    /// How far outputs may lie from the known answers of a place: the largest difference, as a share of the
    /// largest expected value of the same port. [`crate::judge`] compares so.
    #[serde(default = "default_tolerance")]
    pub tolerance: f32,
    /// The same variant compiled ahead of time, at most once for a platform.
    #[serde(default)]
    pub blobs: Vec<Blob>,
}

impl Variant {
    /// Element types of what it takes and gives.
    pub fn elements(&self) -> Elements {
        Elements::new(self.activations, self.kv_cache)
    }

    /// Element type at the port of a role.
    pub fn port_element(&self, role: Role) -> ElementType {
        self.elements().at(role)
    }
}

/// Element types of what kernels hand on to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elements {
    /// Of hidden states, queries and what attention gives.
    pub activations: ElementType,
    /// Of keys and values.
    pub kv: ElementType,
}

impl Elements {
    /// As a variant has them: see [`Variant::kv_cache`].
    pub fn new(activations: ElementType, kv_cache: Option<ElementType>) -> Self {
        Self {
            activations,
            kv: kv_cache.unwrap_or(activations),
        }
    }

    /// At the port of a role: positions are i64, rotary factors and logits f32 in all variants.
    pub fn at(self, role: Role) -> ElementType {
        match role {
            Role::Position => ElementType::I64,
            Role::Cos | Role::Sin | Role::Logits => ElementType::F32,
            Role::Key | Role::Value => self.kv,
            Role::Hidden | Role::Query | Role::Attended => self.activations,
        }
    }
}

/// For bundles that were written before variants had one.
fn default_tolerance() -> f32 {
    0.05
}

/// A variant compiled for one NPU platform. It takes the same inputs and gives the same outputs as the IR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// What it runs on.
    pub platform: NpuPlatform,
    /// What the compiler wrote into it about the device and the driver it needs.
    pub compatibility: Compatibility,
    /// The bytes, as OpenVINO exported them.
    pub section: SectionId,
}

/// What a blob needs: the compatibility string at its end, e.g. `compiler=8.4;npu=3720;t=2;elf=1.2.0`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compatibility {
    /// Version of the NPU compiler (`compiler`).
    pub compiler: String,
    /// Version of the ELF layout (`elf`), which the driver has to know.
    pub elf: String,
    /// Tiles it was scheduled for (`t`).
    pub tiles: Option<u32>,
    /// Stepping it is bound to (`s`), if any.
    pub stepping: Option<String>,
    /// The whole string, with what else is in it.
    pub text: String,
}

/// Which token counts a variant accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ShapeClass {
    /// Any number of tokens.
    Dynamic,
    /// Exactly this many tokens; fewer are padded.
    Static {
        /// The chunk.
        tokens: u32,
    },
    /// Exactly this many tokens over exactly this many rows of the KV cache: attention where nothing may be
    /// dynamic. Fewer of either are padded; padded rows of the cache lie behind the visible ones. Its IR has the
    /// number of rows of the cache in three places: the shapes of keys and values, and an i32 literal 0, 1, 2… that
    /// counts them. So a reader can have it over fewer rows.
    Bucket {
        /// The chunk.
        tokens: u32,
        /// Rows of the cache, the chunk's own included.
        context: u32,
    },
}

impl ShapeClass {
    /// The token count it is fixed to, if it is.
    pub fn chunk(self) -> Option<u32> {
        match self {
            Self::Dynamic => None,
            Self::Static { tokens } | Self::Bucket { tokens, .. } => Some(tokens),
        }
    }

    /// The number of cache rows it is fixed to, if it is.
    pub fn bucket(self) -> Option<u32> {
        match self {
            Self::Dynamic | Self::Static { .. } => None,
            Self::Bucket { context, .. } => Some(context),
        }
    }

    /// Whether a call of `tokens` over `context` visible rows fits, padded where need be.
    pub fn admits(self, tokens: usize, context: usize) -> bool {
        let fits = |limit: Option<u32>, size| limit.is_none_or(|limit| size <= limit as usize);
        fits(self.chunk(), tokens) && fits(self.bucket(), context)
    }
}

/// `dynamic`, the chunk, or chunk×bucket.
impl std::fmt::Display for ShapeClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dynamic => f.write_str("dynamic"),
            Self::Static { tokens } => tokens.fmt(f),
            Self::Bucket { tokens, context } => write!(f, "{tokens}×{context}"),
        }
    }
}

/// How weights reach a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Binding {
    /// Constants in the IR that point into the mapped bundle.
    Constant,
    /// Inputs, bound once per infer request; one compiled kernel serves all layers.
    Input,
}

/// The kernels of one layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Query, key and value projections.
    pub qkv: KernelUse,
    /// Attention.
    pub mha: KernelUse,
    /// The rest of the layer.
    pub ffn: KernelUse,
}

/// A kernel with the weights of one place in the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelUse {
    /// Which kernel.
    pub kernel: KernelId,
    /// Its weights, in the order of [`Kernel::parameters`].
    pub weights: Vec<WeightId>,
    /// Rotary table of this place, where the kernel takes one.
    pub rope: Option<RopeId>,
    /// What comes out for the inputs that [`Manifest::known_answers`] describes: the outputs in port order,
    /// each as f32 [rows, width].
    #[serde(default)]
    pub answer: Option<SectionId>,
}

/// A question that every place of the model was asked, and answered in f32 from its stored weights, so that
/// a device that computes something else is found out. The inputs themselves are not stored: they follow
/// from these numbers, see [`KnownAnswers::values`].
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

/// Versions and hashes of what the bundle was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Version of the compiler.
    pub compiler: String,
    /// OpenVINO release whose IR is written.
    pub openvino: String,
    /// OpenVINO build whose NPU compiler made the blobs, where there are any.
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
