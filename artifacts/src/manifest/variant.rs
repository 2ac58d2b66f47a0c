//! Variants of a kernel: their devices, shapes, element types and NPU blobs.

use heg_spec::{DeviceClass, NpuPlatform};
use serde::{Deserialize, Serialize};

use super::Role;
use crate::content_id::SectionId;

/// Element types that reach a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ElementType {
    /// 4-bit signed integer, two in a byte, with the even column in the low half.
    I4,
    /// 4-bit unsigned integer, likewise.
    U4,
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

/// Elements of a head of the KV cache that share a scale, a bf16, where they are 8-bit integers; the last group of a head may
/// have fewer. Measured: with one scale for each head of 64, keys of SmolLM2 cost twice the accuracy.
pub const CACHE_GROUP: u32 = 32;

impl ElementType {
    /// Size of one element, in bits.
    pub const fn bits(self) -> u64 {
        match self {
            Self::I4 | Self::U4 => 4,
            Self::I8 => 8,
            Self::F16 | Self::Bf16 => 16,
            Self::F32 => 32,
            Self::I64 => 64,
        }
    }

    /// Size of one element, in bytes. A 4-bit element shares its byte with a neighbour; for several elements use
    /// [`bytes_of`](Self::bytes_of).
    pub const fn bytes(self) -> u64 {
        self.bits().div_ceil(8)
    }

    /// Size of a run of elements, in bytes; `None` if it does not fit in 64 bits.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        Some(elements.checked_mul(self.bits())?.div_ceil(8))
    }

    /// Bytes of a row of the KV cache with `width` elements in heads of `head_dim`; `None` if they do not fit in 64 bits.
    /// Each head of 8-bit integers has the scales of its groups behind it: see [`CACHE_GROUP`].
    pub fn cache_row_bytes(self, width: u32, head_dim: u32) -> Option<u64> {
        let scales = match self {
            Self::I8 => {
                let of_head = u64::from(head_dim.div_ceil(CACHE_GROUP)) * Self::Bf16.bytes();
                u64::from(width.checked_div(head_dim)?).checked_mul(of_head)?
            }
            Self::I4 | Self::U4 | Self::F16 | Self::Bf16 | Self::F32 | Self::I64 => 0,
        };
        self.bytes_of(width.into())?.checked_add(scales)
    }

    /// Whether it is a 4-bit integer, whose columns are in groups.
    pub const fn is_grouped(self) -> bool {
        matches!(self, Self::I4 | Self::U4)
    }
}

/// A realisation of a kernel: device class × shape class × weight binding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Class of the device that it is meant for.
    pub device: DeviceClass,
    /// The token counts that it accepts.
    pub shape: ShapeClass,
    /// The way it gets its weights.
    pub binding: Binding,
    /// Element type of its activation ports: see [`port_element`](Self::port_element).
    pub activations: ElementType,
    /// Element type of keys and values, if it differs from that of the other activations. A cache of [`ElementType::I8`] is
    /// the program's alone: the IR, whose keys and values are bf16 then, is not for kernels that read or write the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<ElementType>,
    /// Whether the new tokens of a call may be a tree. It then has one more input behind the activation ports, `[c, c]` in
    /// the type of its activations: 1 where the token of a row sees that of the column, itself and those that it comes
    /// after, else 0. Tokens that come one after the other make the lower triangle. Only static attention has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_trees: bool,
    /// OpenVINO IR (XML). [`Binding::Constant`] refers to its weights as `offset="@k"`, where k counts the sections of
    /// the [`KernelUse`](super::KernelUse): values, then scales and centres if there are any, weight after weight.
    /// Input binding takes the same list as inputs after the activation ports. Either binding finds its small constants
    /// at `offset="@c+N"`, N bytes into [`Manifest::literals`](super::Manifest::literals). Each is followed by `
    /// size="S"/>`, S bytes within the section; a runtime refuses attributes `offset` and `size` of any other form.
    pub ir: SectionId,
    /// The kernel's [CPU program](crate::program); only dynamic variants for the CPU have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<SectionId>,
    /// Largest difference between outputs and the known answers of a place, as a share of the largest expected value of
    /// the same port; see [`crate::judge`].
    #[serde(default = "default_tolerance")]
    pub tolerance: f32,
    /// The same variant compiled ahead of time, at most once per platform.
    #[serde(default)]
    pub blobs: Vec<Blob>,
}

impl Variant {
    /// Element types of its ports.
    pub fn elements(&self) -> Elements {
        Elements::new(self.activations, self.kv_cache)
    }

    /// Element type at the port of a role.
    pub fn port_element(&self, role: Role) -> ElementType {
        self.elements().at(role)
    }
}

/// Element types of the tensors that kernels pass to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elements {
    /// Element type of hidden states, queries and attention outputs.
    pub activations: ElementType,
    /// Element type of keys and values.
    pub kv: ElementType,
}

impl Elements {
    /// Element types of a variant: see [`Variant::kv_cache`].
    pub fn new(activations: ElementType, kv_cache: Option<ElementType>) -> Self {
        Self {
            activations,
            kv: kv_cache.unwrap_or(activations),
        }
    }

    /// Element type at the port of a role: positions are i64, rotary factors, logits and vectors f32 in all variants.
    pub fn at(self, role: Role) -> ElementType {
        match role {
            Role::Position => ElementType::I64,
            Role::Cos | Role::Sin | Role::Logits | Role::Vector => ElementType::F32,
            Role::Key | Role::Value => self.kv,
            Role::Hidden | Role::Query | Role::Attended => self.activations,
        }
    }

    /// Bytes of a row of `width` elements at the port of a role, in a model with heads of `head_dim`; `None` if they do not
    /// fit in 64 bits.
    pub fn row_bytes(self, role: Role, width: u32, head_dim: u32) -> Option<u64> {
        let element = self.at(role);
        match role {
            Role::Key | Role::Value => element.cache_row_bytes(width, head_dim),
            Role::Hidden
            | Role::Query
            | Role::Attended
            | Role::Cos
            | Role::Sin
            | Role::Logits
            | Role::Vector
            | Role::Position => element.bytes_of(width.into()),
        }
    }
}

/// The tolerance of bundles written before variants had one.
fn default_tolerance() -> f32 {
    0.05
}

/// A variant compiled for one NPU platform. It takes the same inputs and gives the same outputs as the IR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// The platform that it runs on.
    pub platform: NpuPlatform,
    /// Requirements on device and driver, as written by the compiler.
    pub compatibility: Compatibility,
    /// The bytes, as OpenVINO exported them.
    pub section: SectionId,
}

/// Requirements of a blob: the compatibility string at its end, e.g. `compiler=8.4;npu=3720;t=2;elf=1.2.0`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compatibility {
    /// Version of the NPU compiler (`compiler`).
    pub compiler: String,
    /// Version of the ELF layout (`elf`), which the driver has to support.
    pub elf: String,
    /// Tiles it was scheduled for (`t`).
    pub tiles: Option<u32>,
    /// Stepping it is bound to (`s`), if any.
    pub stepping: Option<String>,
    /// The whole string, other attributes included.
    pub text: String,
}

/// Token counts that a variant accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ShapeClass {
    /// Any number of tokens.
    Dynamic,
    /// Exactly this many tokens; fewer are padded.
    Static {
        /// The chunk.
        tokens: u32,
    },
    /// Exactly this many tokens over exactly this many rows of the KV cache: attention on devices without dynamic
    /// shapes. Fewer of either are padded; padded rows of the cache come after the visible ones. Its IR has the number
    /// of cache rows in three places: the shapes of keys and values, and an i32 literal 0, 1, 2… that counts them. So a
    /// reader can rewrite it for fewer rows.
    Bucket {
        /// The chunk.
        tokens: u32,
        /// Rows of the cache, the chunk's own included.
        context: u32,
    },
}

impl ShapeClass {
    /// The fixed token count, if there is one.
    pub fn chunk(self) -> Option<u32> {
        match self {
            Self::Dynamic => None,
            Self::Static { tokens } | Self::Bucket { tokens, .. } => Some(tokens),
        }
    }

    /// The fixed number of cache rows, if there is one.
    pub fn bucket(self) -> Option<u32> {
        match self {
            Self::Dynamic | Self::Static { .. } => None,
            Self::Bucket { context, .. } => Some(context),
        }
    }

    /// Whether a call of `tokens` over `context` visible rows fits, with padding if necessary.
    pub fn admits(self, tokens: usize, context: usize) -> bool {
        let fits = |limit: Option<u32>, size| limit.is_none_or(|limit| size <= limit as usize);
        fits(self.chunk(), tokens) && fits(self.bucket(), context)
    }
}

/// Formats as `dynamic`, the chunk, or chunk×bucket.
impl std::fmt::Display for ShapeClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dynamic => f.write_str("dynamic"),
            Self::Static { tokens } => tokens.fmt(f),
            Self::Bucket { tokens, context } => write!(f, "{tokens}×{context}"),
        }
    }
}

/// The way a kernel gets its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Binding {
    /// Constants in the IR that point into the mapped bundle.
    Constant,
    /// Inputs, bound once per infer request; one compiled kernel serves all layers.
    Input,
}
