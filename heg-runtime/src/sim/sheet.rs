//! What the simulator has to know of a model: its shape, its kernels' work, and what is known of their speed.
//!
//! A bundle says all of this in its manifest and its annotations, among gigabytes of weights. A sheet is that
//! part by itself, as RON of some tens of kilobytes, so that an evaluation needs no bundle. The shipped ones
//! were written by `cargo xtask model-sheet` from bundles with NPU blobs: their NPU latencies are the vendor
//! compiler's own (DESIGN §4.3).

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{Kernel, Manifest, Model};
use heg_profiler::annotation::Annotations;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest sheet that is read, in bytes. Chosen: ten times what a model with blobs for three NPUs needs.
const BYTES_MAX: usize = 1 << 20;

/// Shipped sheets: name and text.
const SHIPPED: &[(&str, &str)] = &[
    ("llama-3.2-3b", include_str!("models/llama-3.2-3b.ron")),
    ("llama-3.1-8b", include_str!("models/llama-3.1-8b.ron")),
];

/// A model without its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSheet {
    /// Dimensions and limits.
    pub model: Model,
    /// Decoder layers.
    pub layers: u32,
    /// The kernels of the first layer, which stands for all, and the head. IR and blobs are left out.
    pub kernels: Vec<Kernel>,
    /// What is known of their speed, by machine.
    pub annotations: Annotations,
}

/// A sheet cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SheetError {
    /// It is too long to be one.
    #[error("the model sheet is {found} bytes long, expected up to {BYTES_MAX}")]
    TooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// It is not RON of a sheet's form.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// No sheet of this name ships.
    #[error("no model sheet `{found}` ships; expected one of {}", ModelSheet::names().join(", "))]
    Unknown {
        /// What was asked for.
        found: String,
    },
}

impl ModelSheet {
    /// The sheet of a bundle.
    pub fn of(manifest: &Manifest, annotations: Annotations) -> Self {
        let first = manifest.layers.first();
        let uses = first.map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
        let uses = uses.into_iter().flatten().chain([&manifest.head]);
        let kernels = uses.filter_map(|used| {
            let mut kernel = manifest.kernels.get(used.kernel.0 as usize)?.clone();
            for variant in &mut kernel.variants {
                variant.ir = SectionId::of(b"");
                variant.blobs.clear();
            }
            Some(kernel)
        });
        Self {
            model: manifest.model.clone(),
            layers: manifest.layers.len() as u32,
            kernels: kernels.collect(),
            annotations,
        }
    }

    /// Reads a sheet.
    pub fn parse(text: &str) -> Result<Self, SheetError> {
        if text.len() > BYTES_MAX {
            return Err(SheetError::TooLong { found: text.len() });
        }
        options()
            .from_str(text)
            .map_err(|error| SheetError::Syntax {
                line: error.span.start.line,
                column: error.span.start.col,
                message: error.code.to_string(),
            })
    }

    /// The sheet's text, the same for equal sheets: one field, kernel or device a line, as far as that goes.
    pub fn to_text(&self) -> Result<String, SheetError> {
        let layout = ron::ser::PrettyConfig::new()
            .depth_limit(3)
            .compact_arrays(false)
            .indentor(" ");
        options()
            .to_string_pretty(self, layout)
            .map(|text| text + "\n")
            .map_err(|error| SheetError::Syntax {
                line: 1,
                column: 1,
                message: error.to_string(),
            })
    }

    /// A shipped sheet.
    pub fn shipped(name: &str) -> Result<Self, SheetError> {
        let found = SHIPPED.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| SheetError::Unknown {
            found: name.to_owned(),
        })?;
        Self::parse(text)
    }

    /// Names of the shipped sheets.
    pub fn names() -> Vec<&'static str> {
        SHIPPED.iter().map(|(name, _)| *name).collect()
    }
}

fn options() -> ron::Options {
    ron::Options::default()
        .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME)
        .with_recursion_limit(64)
}
