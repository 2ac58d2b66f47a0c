//! Elements of tensors in the bundle, read as f32 lanes.

use super::Lanes;
use heg_artifacts::manifest::ElementType;

/// An element type that lanes are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    /// 8-bit signed integer.
    I8,
    /// 16-bit float.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 32-bit float.
    F32,
}

impl Element {
    /// The element type of a tensor, if lanes can be read from it.
    pub(crate) const fn of(element: ElementType) -> Option<Self> {
        match element {
            ElementType::I8 => Some(Self::I8),
            ElementType::F16 => Some(Self::F16),
            ElementType::Bf16 => Some(Self::Bf16),
            ElementType::F32 => Some(Self::F32),
            ElementType::I64 | ElementType::I4 | ElementType::U4 => None,
        }
    }

    /// Size in bytes.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::I8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// Loads `count` elements; the other lanes are zero.
    ///
    /// # Safety
    ///
    /// See [`Lanes`]: `from` has `count` elements, and `count` is at most 16.
    #[inline(always)]
    pub(crate) unsafe fn load_first<L: Lanes>(self, from: *const u8, count: usize) -> L {
        // SAFETY: the caller has the instructions of `L` and the elements.
        unsafe {
            match self {
                Self::I8 => L::load_i8_first(from.cast(), count),
                Self::F16 => L::load_f16_first(from.cast(), count),
                Self::Bf16 => L::load_bf16_first(from.cast(), count),
                Self::F32 => L::load_first(from.cast(), count),
            }
        }
    }
}
