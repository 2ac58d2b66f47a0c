//! Words that every part of HEG shares: device classes, op groups, weight forms and NPU platforms.
//!
//! Spec files, bundles and profiles all write these types, so each has one serde form: the name of its variant, or
//! the number of its platform.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Classes of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceClass {
    /// The CPU cores.
    Cpu,
    /// The integrated GPU.
    Igpu,
    /// The neural processing unit.
    Npu,
}

impl DeviceClass {
    /// The class of the device behind OpenVINO's name for it, e.g. `GPU.0`; `None` for a name that is not of a single
    /// device.
    pub fn of_openvino(name: &str) -> Option<Self> {
        match name.split('.').next() {
            Some("CPU") => Some(Self::Cpu),
            Some("GPU") => Some(Self::Igpu),
            Some("NPU") => Some(Self::Npu),
            _ => None,
        }
    }

    /// Name in reports and style sheets: `cpu`, `igpu` or `npu`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Igpu => "igpu",
            Self::Npu => "npu",
        }
    }
}

/// The op groups of the HEG (Agent.xpu §4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Group {
    /// Norm, projections, bias, q/k norm, RoPE. Token-wise.
    Qkv,
    /// Attention of one request. Sequence-wise.
    Mha,
    /// Output projection, residual, norm, gated FFN, residual. Token-wise.
    Ffn,
    /// Final norm and output projection.
    Head,
}

impl Group {
    /// All groups, in execution order.
    pub const ALL: [Self; 4] = [Self::Qkv, Self::Mha, Self::Ffn, Self::Head];

    /// Name of the field of a layer that holds the group: `qkv`, `mha`, `ffn` or `head`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qkv => "qkv",
            Self::Mha => "mha",
            Self::Ffn => "ffn",
            Self::Head => "head",
        }
    }
}

/// The tokens that a token's attention sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Sight {
    /// Itself and those before it.
    #[default]
    Causal,
    /// All tokens of its text, which therefore runs in one piece.
    Whole,
}

impl Sight {
    /// Whether tokens see only themselves and those before them.
    pub fn is_causal(&self) -> bool {
        *self == Self::Causal
    }
}

/// The way in which the rows of a text become its vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The row of the first token.
    First,
    /// The row of the last token.
    Last,
}

/// The length of a text's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VectorLength {
    /// That of the pooled rows.
    Pooled,
    /// One: the pooled vector is divided by its own length.
    Unit,
}

/// The form of a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScoreForm {
    /// The number that the head gives.
    Logit,
    /// The number, mapped to 0 to 1 by the logistic function.
    Probability,
}

/// Storage forms of the weights of linear operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum WeightForm {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Channel-wise int8 rows, rounded to nearest, with one f32 scale per row. The rows of the embedding and the head,
    /// whose outliers all have one sign, have one f32 centre per row too.
    W8A16,
    /// Rows of 4-bit integers. Neighbouring columns share an f16 scale and, unless symmetric, an f16 centre. Embedding
    /// and head are stored as with `W8A16`.
    W4A16 {
        /// Columns that share a scale and a centre.
        group: GroupColumns,
        /// Whether integers are signed and have no centres.
        #[serde(default)]
        symmetric: bool,
    },
}

impl WeightForm {
    /// Whether weights are integers.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::W8A16 | Self::W4A16 { .. })
    }
}

/// Forms of keys and values that CPU programs keep beside integer weights. Beside floats they are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum KvForm {
    /// bfloat16.
    #[default]
    Bf16,
    /// 8-bit integers, with scales for groups within each head.
    I8,
}

/// Formats for people, e.g. `W4A16 in groups of 128`.
impl fmt::Display for WeightForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("F32"),
            Self::F16 => f.write_str("F16"),
            Self::W8A16 => f.write_str("W8A16"),
            Self::W4A16 { group, symmetric } => {
                let kind = if *symmetric { "symmetric " } else { "" };
                write!(f, "W4A16 in {kind}groups of {group}")
            }
        }
    }
}

/// Neighbouring columns of a matrix row that share a scale: 32, 64 or 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct GroupColumns(u32);

impl GroupColumns {
    /// The smallest group, as large as the blocks of GGUF files.
    pub const SMALLEST: Self = Self(32);

    /// All group sizes, ascending.
    pub const ALL: [Self; 3] = [Self::SMALLEST, Self(64), Self(128)];

    /// The number of columns.
    pub const fn count(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for GroupColumns {
    type Error = UnknownGroupColumns;

    fn try_from(found: u32) -> Result<Self, UnknownGroupColumns> {
        let mut all = Self::ALL.into_iter();
        let unknown = || UnknownGroupColumns {
            found: found.to_string(),
        };
        all.find(|group| group.0 == found).ok_or_else(unknown)
    }
}

impl From<GroupColumns> for u32 {
    fn from(group: GroupColumns) -> Self {
        group.0
    }
}

impl FromStr for GroupColumns {
    type Err = UnknownGroupColumns;

    fn from_str(text: &str) -> Result<Self, UnknownGroupColumns> {
        let unknown = |_| UnknownGroupColumns {
            found: text.to_owned(),
        };
        text.trim().parse::<u32>().map_err(unknown)?.try_into()
    }
}

impl fmt::Display for GroupColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of columns that no group size matches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected groups of 32, 64 or 128 columns, found {found}")]
pub struct UnknownGroupColumns {
    /// The number, or the text that is no number.
    pub found: String,
}

/// An NPU platform by Intel's number, which OpenVINO calls `NPU_PLATFORM`.
///
/// A platform to compile for is checked where it is parsed, by [`NpuPlatform::check`] or [`FromStr`]. A device or a
/// bundle may name a platform that is newer than this build; such a number is only compared with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NpuPlatform(u32);

impl NpuPlatform {
    /// Meteor Lake, Arrow Lake.
    pub const NPU3720: Self = Self(3720);
    /// Lunar Lake.
    pub const NPU4000: Self = Self(4000);
    /// Panther Lake.
    pub const NPU5010: Self = Self(5010);
    /// Panther Lake, the smaller version.
    pub const NPU5020: Self = Self(5020);

    /// Platforms that the NPU compiler of OpenVINO 2026.4 knows.
    pub const KNOWN: [Self; 4] = [Self::NPU3720, Self::NPU4000, Self::NPU5010, Self::NPU5020];

    /// The platform of a number that a device or a bundle states, known or not.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Intel's number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns this platform if it is one of [`Self::KNOWN`].
    pub fn check(self) -> Result<Self, UnknownNpuPlatform> {
        match Self::KNOWN.contains(&self) {
            true => Ok(self),
            false => Err(UnknownNpuPlatform {
                found: self.to_string(),
            }),
        }
    }
}

impl FromStr for NpuPlatform {
    type Err = UnknownNpuPlatform;

    /// Parses the number of a known platform.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = text.trim();
        let unknown = |_| UnknownNpuPlatform {
            found: found.to_owned(),
        };
        found.parse().map(Self).map_err(unknown)?.check()
    }
}

impl fmt::Display for NpuPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A platform that the NPU compiler does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a platform of {:?}, found {found}",
    NpuPlatform::KNOWN.map(NpuPlatform::number)
)]
pub struct UnknownNpuPlatform {
    /// The number, or the text that is no number.
    pub found: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_to_compile_for_are_those_known() {
        assert_eq!(" 5010 ".parse(), Ok(NpuPlatform::NPU5010));
        let refused = |text: &str| text.parse::<NpuPlatform>().unwrap_err().to_string();
        let expected = "expected a platform of [3720, 4000, 5010, 5020], found ";
        for found in ["3700", "npu", ""] {
            assert_eq!(refused(found), format!("{expected}{found}"));
        }
        let newer = NpuPlatform::new(6000);
        assert_eq!(newer.number(), 6000);
        assert!(newer.check().is_err());
    }

    #[test]
    fn groups_have_32_64_or_128_columns() {
        let parsed: Vec<GroupColumns> = ["32", " 64", "128"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(parsed, GroupColumns::ALL);
        for found in ["0", "16", "100", "-32", "all"] {
            let refused = found.parse::<GroupColumns>().unwrap_err().to_string();
            let expected = "expected groups of 32, 64 or 128 columns, found ";
            assert_eq!(refused, format!("{expected}{found}"));
        }
    }
}
