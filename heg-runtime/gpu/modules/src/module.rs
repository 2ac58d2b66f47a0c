//! The committed modules, and what they are specialised by.
//!
//! `shaders` has their GLSL and `spirv` what it was compiled to by `cargo xtask shaders`, which also checks that both
//! belong together. Constants are numbered in `shaders/include/memory.glsl` and `shaders/include/arithmetic.glsl`.

use std::sync::OnceLock;

use heg_artifacts::SectionId;

use crate::spirv;

macro_rules! modules {
    ($($(#[$doc:meta])* $name:ident = $file:literal,)*) => {
        /// A module of SPIR-V.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Module {
            $($(#[$doc])* $name,)*
        }

        impl Module {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Name of its files.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $file,)*
                }
            }

            /// Its words as committed, packed.
            const fn bytes(self) -> &'static [u8] {
                match self {
                    $(Self::$name => {
                        const FILE: &[u8] = include_bytes!(concat!("../../spirv/", $file, ".spv"));
                        const LENGTH: usize = spirv::packed_length(FILE);
                        static PACKED: [u8; LENGTH] = spirv::packed_file(FILE);
                        &PACKED
                    })*
                }
            }
        }
    };
}

modules! {
    /// Copies, scales, adds, bends and gates elements.
    Elementwise = "elementwise",
    /// RMSNorm, of whole rows or of equal parts.
    RmsNorm = "rms_norm",
    /// LayerNorm.
    LayerNorm = "layer_norm",
    /// Rotary embedding.
    Rope = "rope",
    /// Rows of the embedding table.
    Embedding = "embedding",
    /// Rows by their numbers.
    Gather = "gather",
    /// Attention over the KV cache.
    Attention = "attention",
    /// Operands times integers, an output for each invocation.
    Product = "product",
    /// The same, with the instruction for dot products.
    ProductDots = "product.dot",
    /// A few operands times integers, whose rows are read side by side.
    FewRows = "few_rows",
    /// The same, with the instruction for dot products.
    FewRowsDots = "few_rows.dot",
    /// Many operands times integers, tile by tile.
    Tile = "tile",
    /// The same, with the instruction for dot products.
    TileDots = "tile.dot",
    /// Rows of f32 times any weights.
    FloatProduct = "float_product",
    /// Small copies between memories.
    Copy = "copy",
    /// The properties of the driver's arithmetic.
    Probe = "probe",
    /// The same, with the instruction for dot products.
    ProbeDots = "probe.dot",
}

impl Module {
    /// Its words, as committed.
    pub fn words(self) -> Vec<u32> {
        // A test unpacks each of them.
        spirv::unpack(self.bytes()).unwrap_or_default()
    }

    /// Whether it has the instruction for dot products, which not every driver takes.
    pub const fn has_dots(self) -> bool {
        matches!(
            self,
            Self::ProductDots | Self::FewRowsDots | Self::TileDots | Self::ProbeDots
        )
    }

    /// The module of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|module| module.name() == name)
            .copied()
    }

    /// Its words as the bytes of a section, and the hash of these, by which bundles name them.
    pub fn packed(self) -> &'static PackedModule {
        static ALL: [OnceLock<PackedModule>; Module::ALL.len()] =
            [const { OnceLock::new() }; Module::ALL.len()];
        ALL[self as usize].get_or_init(|| {
            let bytes = self.bytes();
            let section = SectionId::of(bytes);
            PackedModule { bytes, section }
        })
    }

    /// All modules that a step of this one may run as: which of them depends on the rows of a call and on the device.
    pub const fn alternatives(self) -> &'static [Self] {
        match self {
            Self::Product => &[
                Self::Product,
                Self::ProductDots,
                Self::FewRows,
                Self::FewRowsDots,
                Self::Tile,
                Self::TileDots,
            ],
            Self::Elementwise => &[Self::Elementwise],
            Self::RmsNorm => &[Self::RmsNorm],
            Self::LayerNorm => &[Self::LayerNorm],
            Self::Rope => &[Self::Rope],
            Self::Embedding => &[Self::Embedding],
            Self::Gather => &[Self::Gather],
            Self::Attention => &[Self::Attention],
            Self::ProductDots => &[Self::ProductDots],
            Self::FewRows => &[Self::FewRows],
            Self::FewRowsDots => &[Self::FewRowsDots],
            Self::Tile => &[Self::Tile],
            Self::TileDots => &[Self::TileDots],
            Self::FloatProduct => &[Self::FloatProduct],
            Self::Copy => &[Self::Copy],
            Self::Probe => &[Self::Probe],
            Self::ProbeDots => &[Self::ProbeDots],
        }
    }
}

/// A module as a section of a bundle.
#[derive(Debug)]
pub struct PackedModule {
    /// The section's bytes.
    pub bytes: &'static [u8],
    /// The section's name.
    pub section: SectionId,
}

/// Numbers of the specialisation constants.
pub mod constant {
    /// Means of a · b + c: 0, the instruction; 1, steps.
    pub const FMA: u32 = 0;
    /// Means of division, likewise.
    pub const DIV: u32 = 1;
    /// Means of square roots, likewise.
    pub const SQRT: u32 = 2;
    /// Elements of a row, columns of a matrix.
    pub const WIDTH: u32 = 3;
    /// Elements of a head.
    pub const HEAD: u32 = 4;
    /// Rows that an invocation multiplies.
    pub const ROWS: u32 = 5;
    /// Form of the rows that are written.
    pub const FORM: u32 = 6;
    /// Parts of a row that are normed apart.
    pub const GROUPS: u32 = 7;
    /// Element type of weights, keys and values.
    pub const ELEMENT: u32 = 8;
    /// Operation on elements.
    pub const OPERATION: u32 = 9;
    /// Digits of an operand's integers.
    pub const DIGITS: u32 = 10;
    /// 1 where an operand meets weights of half a byte.
    pub const NIBBLES: u32 = 11;
    /// Columns that share a scale, of weights of half a byte.
    pub const COLUMNS: u32 = 12;
    /// Dimensions of a head that are rotated.
    pub const ROTATED: u32 = 13;
    /// Groups of columns that a workgroup reads side by side.
    pub const SLICE: u32 = 14;
    /// 1 where keys and values are read by 16 bytes.
    pub const QUADS: u32 = 15;
    /// Invocations of a workgroup.
    pub const INVOCATIONS: u32 = 16;

    /// Names of the constants, by number.
    pub const NAMES: [&str; 17] = [
        "fma",
        "division",
        "root",
        "width",
        "head",
        "rows",
        "form",
        "groups",
        "element",
        "operation",
        "digits",
        "nibbles",
        "columns",
        "rotated",
        "slice",
        "quads",
        "invocations",
    ];
}
