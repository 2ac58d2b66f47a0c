//! The number of bits of a comparison's weights, and each side's name for it.

use clap::ValueEnum;
use heg_spec::{GroupColumns, WeightForm};
use std::fmt;
use xtask::fail::Fail;

/// Arguments of commands that compare at a precision.
#[derive(clap::Args)]
pub(crate) struct PrecisionArgs {
    /// Weights of all sides
    #[arg(long, value_enum, default_value_t = Bits::W8a16)]
    weights: Bits,
    /// Columns that share a scale in 4-bit weights: 32, 64 or 128 [default: 32]
    #[arg(long, value_name = "COLUMNS")]
    group: Option<GroupColumns>,
}

/// Bits of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bits {
    /// 8-bit integers: GenAI's int8, llama.cpp's Q8_0
    W8a16,
    /// 4-bit integers in groups: GenAI's int4 in groups of as many columns, llama.cpp's Q4_0
    W4a16,
}

/// The weights of all sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// 8-bit integers.
    EightBits,
    /// 4-bit integers in groups.
    FourBits(GroupColumns),
}

impl PrecisionArgs {
    pub(crate) fn precision(&self) -> anyhow::Result<Precision> {
        match (self.weights, self.group) {
            (Bits::W8a16, None) => Ok(Precision::EightBits),
            (Bits::W4a16, group) => {
                Ok(Precision::FourBits(group.unwrap_or(GroupColumns::SMALLEST)))
            }
            (Bits::W8a16, Some(_)) => Err(Fail::input("`--group` without `--weights w4a16`"))?,
        }
    }
}

impl Precision {
    /// HEG's form.
    pub(crate) fn form(self) -> WeightForm {
        match self {
            Self::EightBits => WeightForm::W8A16,
            Self::FourBits(group) => WeightForm::W4A16 {
                group,
                symmetric: false,
            },
        }
    }

    /// GenAI's form.
    pub(crate) fn of_genai(self) -> &'static str {
        match self {
            Self::EightBits => "int8",
            Self::FourBits(_) => "int4",
        }
    }

    /// The arguments for optimum-cli: all matrices of the layers alike, asymmetric, its default.
    pub(crate) fn export_arguments(self) -> Vec<String> {
        let mut arguments = vec!["--weight-format".to_owned(), self.of_genai().to_owned()];
        if let Self::FourBits(group) = self {
            let of_groups = ["--group-size", &group.to_string(), "--ratio", "1.0"];
            arguments.extend(of_groups.map(str::to_owned));
        }
        arguments
    }

    /// llama.cpp's type.
    pub(crate) fn of_llama(self) -> &'static str {
        match self {
            Self::EightBits => "Q8_0",
            Self::FourBits(_) => "Q4_0",
        }
    }
}

/// Name of HEG's form in tables and files.
impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EightBits => f.write_str("w8a16"),
            Self::FourBits(group) => write!(f, "w4a16-{group}"),
        }
    }
}
