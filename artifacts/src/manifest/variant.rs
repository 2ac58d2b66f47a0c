//! Variants of a kernel: for which device, in which shapes, with which element types, and their NPU blobs.

use heg_spec::{DeviceClass, NpuPlatform};
use serde::{Deserialize, Serialize};

use super::Role;
use crate::content_id::SectionId;

/// Element types that reach a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ElementType {
    /// 4-bit signed integer, two in a byte, the one of the even column in its low half.
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

    /// Size of one element, in bytes. A 4-bit one shares its byte with a neighbour: of several,
    /// [`bytes_of`](Self::bytes_of) gives the size.
    pub const fn bytes(self) -> u64 {
        self.bits().div_ceil(8)
    }

    /// Size of a run of elements, in bytes; `None` if it does not fit in 64 bits.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        Some(elements.checked_mul(self.bits())?.div_ceil(8))
    }

    /// Whether it is an integer of half a byte, whose columns are in groups.
    pub const fn is_grouped(self) -> bool {
        matches!(self, Self::I4 | Self::U4)
    }
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
    /// sections of the [`KernelUse`](super::KernelUse): values, then scales and centres where there are any, weight
    /// after weight. Input binding takes the same list as inputs behind the activation ports. Either kind finds its small
    /// constants at `offset="@c+N"`, N bytes into [`Manifest::literals`](super::Manifest::literals). Each is followed by ` size="S"/>`, S bytes that
    /// are within the section; a runtime refuses attributes `offset` and `size` of any other form.
    pub ir: SectionId,
    /// [CPU program](crate::program) of the kernel; only dynamic variants for the CPU have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<SectionId>,
    /// How far outputs may lie from the known answers of a place: the largest difference, as a share of the
    /// largest expected value of the same port. [`crate::judge`] compares so.
    #[serde(default = "default_tolerance")]
    pub tolerance: f32,
    /// The same variant compiled ahead of time, at most once for a platform.
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

    /// Element type at the port of a role: positions are i64, rotary factors and logits f32 in all variants.
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
    /// The platform that it runs on.
    pub platform: NpuPlatform,
    /// Requirements on device and driver, as the compiler wrote them.
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
    /// Version of the ELF layout (`elf`), which the driver has to know.
    pub elf: String,
    /// Tiles it was scheduled for (`t`).
    pub tiles: Option<u32>,
    /// Stepping it is bound to (`s`), if any.
    pub stepping: Option<String>,
    /// The whole string, other attributes included.
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
