//! The committed modules, and what they are specialised by.
//!
//! `shaders` has their GLSL and `spirv` what it was compiled to by `cargo xtask shaders`, which also checks that both
//! belong together. Constants are numbered in `shaders/include/memory.glsl` and `shaders/include/arithmetic.glsl`.

use crate::error::GpuError;
use crate::spirv::{self, Declarations};

macro_rules! modules {
    ($($(#[$doc:meta])* $name:ident = $file:literal,)*) => {
        /// A module of SPIR-V.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Module {
            $($(#[$doc])* $name,)*
        }

        impl Module {
            /// All of them.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// Name of its files.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $file,)*
                }
            }

            const fn bytes(self) -> &'static [u8] {
                match self {
                    $(Self::$name => include_bytes!(concat!("../spirv/", $file, ".spv")),)*
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
    pub(crate) fn words(self) -> Vec<u32> {
        let words = self.bytes().chunks_exact(4);
        words
            .map(|b| {
                b.iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u32::from(*byte))
            })
            .collect()
    }

    /// Whether it has the instruction for dot products, which not every driver takes.
    #[cfg(test)]
    pub(crate) const fn has_dots(self) -> bool {
        matches!(
            self,
            Self::ProductDots | Self::FewRowsDots | Self::TileDots | Self::ProbeDots
        )
    }

    /// Its words for a shape and a driver.
    pub(crate) fn specialised(
        self,
        constants: &[(u32, u32)],
        declared: Declarations,
    ) -> Result<Vec<u32>, GpuError> {
        let wrong = |source| GpuError::Module {
            name: self.name(),
            source,
        };
        let mut words = self.words();
        spirv::specialise(&mut words, constants).map_err(wrong)?;
        spirv::declare(&words, declared).map_err(wrong)
    }
}

/// Numbers of the specialisation constants.
pub(crate) mod constant {
    pub(crate) const FMA: u32 = 0;
    pub(crate) const DIV: u32 = 1;
    pub(crate) const SQRT: u32 = 2;
    pub(crate) const WIDTH: u32 = 3;
    pub(crate) const HEAD: u32 = 4;
    pub(crate) const ROWS: u32 = 5;
    pub(crate) const FORM: u32 = 6;
    pub(crate) const GROUPS: u32 = 7;
    pub(crate) const ELEMENT: u32 = 8;
    pub(crate) const OPERATION: u32 = 9;
    pub(crate) const DIGITS: u32 = 10;
    pub(crate) const NIBBLES: u32 = 11;
    pub(crate) const COLUMNS: u32 = 12;
    pub(crate) const ROTATED: u32 = 13;
    pub(crate) const SLICE: u32 = 14;
    pub(crate) const QUADS: u32 = 15;
    pub(crate) const INVOCATIONS: u32 = 16;
}
