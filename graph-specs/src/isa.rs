//! Instruction sets for which the CPU's kernels have an implementation.

#[cfg(target_arch = "x86_64")]
mod amx;

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Isa {
    /// Rust without intrinsics, on any machine; slow.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX2 and FMA, with AVX-VNNI's dot products of bytes.
    AvxVnni,
    /// AVX-512 (F, BW, DQ, VL) with its dot products of bytes.
    Avx512Vnni,
    /// [`Avx512Vnni`](Self::Avx512Vnni), with AMX's tiles of bytes for products of many rows.
    Avx512Amx,
}

impl Isa {
    /// All instruction sets, best first.
    pub const ALL: [Self; 5] = [
        Self::Avx512Amx,
        Self::Avx512Vnni,
        Self::AvxVnni,
        Self::Avx2,
        Self::Portable,
    ];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512Amx => "avx512-amx",
        }
    }

    /// The best instruction set of this machine.
    pub fn best() -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|isa| isa.is_available()).unwrap_or(Self::Portable)
    }

    /// Whether this machine has the instruction set, and the system lets this process use it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Amx => Self::Avx512Vnni.is_available() && amx::is_usable(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::AvxVnni | Self::Avx512Vnni | Self::Avx512Amx => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name of no instruction set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown instruction set `{0}`, expected one of `avx512-amx`, `avx512-vnni`, `avx-vnni`, `avx2`, `portable`"
)]
pub struct UnknownIsa(String);

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        let mut all = Self::ALL.into_iter();
        let unknown = || UnknownIsa(name.to_owned());
        all.find(|isa| isa.name() == name).ok_or_else(unknown)
    }
}
