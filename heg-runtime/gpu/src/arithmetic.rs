//! The arithmetic of a device: the ways to bits that are those of the CPU programs.

use heg_spirv::constant;
use heg_spirv::spirv::Declarations;

/// The way in which an operation is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Means {
    /// By the device's instruction, which rounds as IEEE 754 says.
    #[default]
    Instruction,
    /// By steps of other operations that do.
    Steps,
}

impl Means {
    const fn constant(self) -> u32 {
        match self {
            Self::Instruction => 0,
            Self::Steps => 1,
        }
    }
}

impl std::fmt::Display for Means {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Instruction => "instruction",
            Self::Steps => "steps",
        })
    }
}

/// Variant of the modules that a device runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Arithmetic {
    /// a · b + c with one rounding.
    pub fma: Means,
    /// Division.
    pub division: Means,
    /// Square root.
    pub root: Means,
    /// Whether totals of bytes are computed by the instruction for dot products.
    pub dots: bool,
    /// The declarations of modules.
    pub(crate) declared: Declarations,
}

impl Arithmetic {
    /// The variant that an earlier probe has found.
    pub fn known(fma: Means, division: Means, root: Means, dots: bool) -> Self {
        Self {
            fma,
            division,
            root,
            dots,
            declared: Declarations::default(),
        }
    }

    /// Values of the constants that choose the variant.
    pub(crate) fn constants(self) -> [(u32, u32); 3] {
        [
            (constant::FMA, self.fma.constant()),
            (constant::DIV, self.division.constant()),
            (constant::SQRT, self.root.constant()),
        ]
    }
}
