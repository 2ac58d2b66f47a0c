//! Model sheets: the data of a model that the simulator needs, namely its shape, its kernels' work, and their
//! known speeds.
//!
//! A bundle has all of this in its manifest and its annotations, beside gigabytes of weights. A sheet is that part
//! alone, as RON of some tens of kilobytes, so that an evaluation needs no bundle. The shipped ones were written
//! by `cargo xtask model-sheet` from bundles with NPU blobs: their NPU latencies are the vendor compiler's own
//! (DESIGN §4.3).

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{Kernel, Manifest, Model};
use heg_profiler::annotation::Annotations;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use heg_costs::first_kernels;

/// Size of the longest sheet that is read, in bytes. Chosen: ten times that of a model with blobs for three NPUs.
const BYTES_MAX: usize = 1 << 20;

/// The shipped sheets, by name and text.
const SHIPPED: &[(&str, &str)] = &[
    ("llama-3.2-3b", include_str!("models/llama-3.2-3b.ron")),
    ("llama-3.1-8b", include_str!("models/llama-3.1-8b.ron")),
];

/// A model without its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSheet {
    /// The model's dimensions and limits.
    pub model: Model,
    /// Number of decoder layers.
    pub layers: u32,
    /// The kernels of the first layer, which stands for all, and the head. IR and blobs are left out.
    pub kernels: Vec<Kernel>,
    /// Measured or predicted speeds, by machine.
    pub annotations: Annotations,
}

/// The reason why a sheet cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SheetError {
    /// The text is too long.
    #[error("the model sheet is {found} bytes long, expected up to {BYTES_MAX}")]
    TooLong {
        /// Size of the text in bytes.
        found: usize,
    },
    /// The text is not a sheet in RON.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The parser's message.
        message: String,
    },
    /// No sheet of this name ships.
    #[error("no model sheet `{found}` ships; expected one of {}", ModelSheet::names().join(", "))]
    Unknown {
        /// The requested name.
        found: String,
    },
}

impl ModelSheet {
    /// Extracts the sheet of a bundle.
    pub fn of(manifest: &Manifest, annotations: Annotations) -> Self {
        let kernels = first_kernels(manifest).map(|kernel| {
            let mut kernel = kernel.clone();
            for variant in &mut kernel.variants {
                variant.ir = SectionId::of(b"");
                variant.blobs.clear();
            }
            kernel
        });
        Self {
            model: manifest.model.clone(),
            layers: manifest.layers.len() as u32,
            kernels: kernels.collect(),
            annotations,
        }
    }

    /// Parses a sheet.
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

    /// Returns the sheet's text, the same for equal sheets: one field, kernel or device a line where possible.
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

    /// Returns a shipped sheet.
    pub fn shipped(name: &str) -> Result<Self, SheetError> {
        let found = SHIPPED.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| SheetError::Unknown {
            found: name.to_owned(),
        })?;
        Self::parse(text)
    }

    /// Returns the names of the shipped sheets.
    pub fn names() -> Vec<&'static str> {
        SHIPPED.iter().map(|(name, _)| *name).collect()
    }
}

fn options() -> ron::Options {
    ron::Options::default()
        .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME)
        .with_recursion_limit(64)
}

#[cfg(test)]
mod tests {
    use heg_spec::shipped;

    use super::*;
    use crate::Platform;
    use heg_sched::{Call, Costs, Lane, LayerKernel};

    #[test]
    fn shipped_sheets_are_small_and_read_back() {
        for name in ModelSheet::names() {
            let sheet = ModelSheet::shipped(name).unwrap();
            assert_eq!(sheet.model.name, name);
            let text = sheet.to_text().unwrap();
            assert!(text.len() < 50_000, "{name}: {} bytes", text.len());
            assert_eq!(ModelSheet::parse(&text).unwrap(), sheet);
        }
    }

    #[test]
    fn what_is_no_sheet_is_refused_with_its_place() {
        let refused = |text: &str| ModelSheet::parse(text).unwrap_err().to_string();
        assert!(refused("(\n layers: x)").starts_with("line 2, column "));
        assert!(
            refused(&" ".repeat(BYTES_MAX + 1)).starts_with("the model sheet is 1048577 bytes")
        );
        let unknown = ModelSheet::shipped("llama").unwrap_err().to_string();
        assert!(
            unknown.ends_with("expected one of llama-3.2-3b, llama-3.1-8b"),
            "{unknown}"
        );
    }

    /// Agent.xpu v2, 4.4: kernels of the 8B model take up to 38 ms at 256 tokens, attention over 2048 tokens
    /// up to 97 ms, on either accelerator.
    #[test]
    fn kernels_take_what_the_paper_measured() {
        let soc = shipped::soc("core-ultra-5-125h").unwrap();
        let sheet = ModelSheet::shipped("llama-3.1-8b").unwrap();
        let platform = Platform::new(&soc, &sheet, 256).unwrap();
        let ms = |lane, kernel, tokens, context| {
            let call = Call::Prefill {
                kernel,
                tokens,
                context,
            };
            platform.costs.cost(lane, call).unwrap().latency_us / 1e3
        };
        for lane in [Lane::Npu, Lane::Igpu] {
            let ffn = ms(lane, LayerKernel::Ffn, 256, 256);
            assert!((36.0..41.0).contains(&ffn), "{lane:?}: {ffn}");
            assert!(ms(lane, LayerKernel::Mha, 2048, 2048) < 97.0);
        }
    }
}
