//! The number of bits of a comparison's weights, and each side's name for it; and HEG's keys and values.

use clap::ValueEnum;
use heg_spec::{GroupColumns, KvForm, WeightForm};
use std::fmt;
use xtask::fail::Fail;

/// Arguments of commands that compare at a precision.
#[derive(clap::Args)]
pub(crate) struct PrecisionArgs {
    /// Weights of all sides
    #[arg(long, value_enum, default_value_t = Weights::W8a16)]
    weights: Weights,
    /// Columns that share a scale in 4-bit weights: 32, 64 or 128 [default: 32]
    #[arg(long, value_name = "COLUMNS")]
    group: Option<GroupColumns>,
    /// HEG's keys and values; GenAI's are integers of 8 bits
    #[arg(long, value_enum, default_value_t = Kv::Bf16)]
    kv: Kv,
}

/// Weights of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weights {
    /// 8-bit integers: GenAI's int8, llama.cpp's Q8_0
    W8a16,
    /// 4-bit integers in groups: GenAI's int4 in groups of as many columns, llama.cpp's Q4_0
    W4a16,
}

/// HEG's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kv {
    /// 16-bit floats
    Bf16,
    /// 8-bit integers
    I8,
}

/// The numbers of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Precision {
    /// Weights of all sides.
    pub(crate) weights: Bits,
    /// HEG's keys and values.
    pub(crate) kv: KvForm,
}

/// Bits of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bits {
    /// 8-bit integers.
    Eight,
    /// 4-bit integers in groups.
    Four(GroupColumns),
}

impl PrecisionArgs {
    pub(crate) fn precision(&self) -> anyhow::Result<Precision> {
        let weights = match (self.weights, self.group) {
            (Weights::W8a16, None) => Bits::Eight,
            (Weights::W4a16, group) => Bits::Four(group.unwrap_or(GroupColumns::SMALLEST)),
            (Weights::W8a16, Some(_)) => Err(Fail::input("`--group` without `--weights w4a16`"))?,
        };
        let kv = self.kv.form();
        Ok(Precision { weights, kv })
    }
}

impl Kv {
    pub(crate) fn form(self) -> KvForm {
        match self {
            Self::Bf16 => KvForm::Bf16,
            Self::I8 => KvForm::I8,
        }
    }
}

impl Precision {
    /// Weights of 8 bits, and what HEG keeps beside them by default.
    pub(crate) const EIGHT_BITS: Self = Self {
        weights: Bits::Eight,
        kv: KvForm::Bf16,
    };

    /// HEG's form of the weights.
    pub(crate) fn form(self) -> WeightForm {
        match self.weights {
            Bits::Eight => WeightForm::W8A16,
            Bits::Four(group) => WeightForm::W4A16 {
                group,
                symmetric: false,
            },
        }
    }

    /// GenAI's form.
    pub(crate) fn of_genai(self) -> &'static str {
        match self.weights {
            Bits::Eight => "int8",
            Bits::Four(_) => "int4",
        }
    }

    /// The arguments for optimum-cli: all matrices of the layers alike, asymmetric, its default.
    pub(crate) fn export_arguments(self) -> Vec<String> {
        let mut arguments = vec!["--weight-format".to_owned(), self.of_genai().to_owned()];
        if let Bits::Four(group) = self.weights {
            let of_groups = ["--group-size", &group.to_string(), "--ratio", "1.0"];
            arguments.extend(of_groups.map(str::to_owned));
        }
        arguments
    }

    /// llama.cpp's type.
    pub(crate) fn of_llama(self) -> &'static str {
        match self.weights {
            Bits::Eight => "Q8_0",
            Bits::Four(_) => "Q4_0",
        }
    }
}

/// Name of HEG's form in tables and files.
impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weights {
            Bits::Eight => f.write_str("w8a16")?,
            Bits::Four(group) => write!(f, "w4a16-{group}")?,
        }
        match self.kv {
            KvForm::Bf16 => Ok(()),
            KvForm::I8 => f.write_str("-kv-i8"),
        }
    }
}
