//! The project's goals for HEG's figures relative to the others', per model.

use crate::goal::Goal;
use crate::precision::{Bits, Precision};
use crate::subject::{LLAMA_1B, SMOLLM2};

/// The divisor of HEG's figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    Genai,
    Llama,
    /// The better of the two peers.
    Better,
    /// The limit by memory bandwidth, if it was measured in the same run.
    Limit,
    /// One megabyte, for absolute goals of memory.
    Megabyte,
}

impl Beside {
    /// Name in tables and in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Genai => "GenAI",
            Self::Llama => "llama.cpp",
            Self::Better => "the better",
            Self::Limit => "the limit",
            Self::Megabyte => "MB",
        }
    }
}

/// The goals of the line `key` for a model; empty if the project has none for it.
pub(super) fn goals(model: &str, precision: Precision, key: &str) -> &'static [(Beside, Goal)] {
    let lines: &[Line] = match (model, precision.weights) {
        (LLAMA_1B, Bits::Eight) => &OF_LLAMA_1B,
        (LLAMA_1B, Bits::Four(_)) => &OF_LLAMA_1B_IN_FOUR_BITS,
        (SMOLLM2, Bits::Eight) => &OF_SMOLLM2,
        _ => &[],
    };
    let found = lines.iter().find(|(of, _)| *of == key);
    found.map_or(&[], |(_, goals)| goals)
}

/// Goals of a line.
type Line = (&'static str, &'static [(Beside, Goal)]);

use Beside::{Better, Genai, Limit, Llama, Megabyte};
use Goal::{AtLeast, AtMost};

const OF_LLAMA_1B: [Line; 11] = [
    ("prefill_tokens_per_s/512", &[(Better, AtLeast(1.3))]),
    ("prefill_tokens_per_s/2048", &[(Better, AtLeast(1.25))]),
    (
        "decode_tokens_per_s",
        &[
            (Genai, AtLeast(1.15)),
            (Llama, AtLeast(1.05)),
            (Limit, AtLeast(0.85)),
        ],
    ),
    ("batch_decode_tokens_per_s", &[(Better, AtLeast(1.2))]),
    ("process_ms", &[(Genai, AtMost(0.25)), (Llama, AtMost(0.6))]),
    ("peak_rss_bytes", &[(Genai, AtMost(0.5))]),
    ("anonymous_bytes", &[(Megabyte, AtMost(60.0))]),
    ("prefill_tokens_per_s/8192", &[(Better, AtLeast(1.25))]),
    ("decode_tokens_per_s_behind/8192", &[(Better, AtLeast(1.6))]),
    ("prefill_tokens_per_s/32768", &[(Better, AtLeast(1.25))]),
    ("peak_rss_bytes_behind/32768", &[(Genai, AtMost(0.5))]),
];

const OF_LLAMA_1B_IN_FOUR_BITS: [Line; 1] = [("decode_tokens_per_s", &[(Genai, AtLeast(1.2))])];

const OF_SMOLLM2: [Line; 4] = [
    ("prefill_tokens_per_s/512", &[(Better, AtLeast(1.2))]),
    (
        "decode_tokens_per_s",
        &[(Genai, AtLeast(2.8)), (Llama, AtLeast(1.15))],
    ),
    ("batch_decode_tokens_per_s", &[(Better, AtLeast(1.2))]),
    ("process_ms", &[(Llama, AtMost(0.6))]),
];
