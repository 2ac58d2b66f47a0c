//! `cargo xtask compile-model`: the command line of the compiler. It finds OpenVINO, chooses the
//! output's name and calls `heg-compiler`; everything that happens to the model happens there.

use crate::fail::Fail;
use crate::setup;
use crate::workspace::root;
use anyhow::{Context, Result, bail};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Arguments of `cargo xtask compile-model`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A model RON file, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json)
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Where to write the bundle [default: artifacts/bundles/NAME.heg]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// How the bundle holds weights [default: the model file's choice, else w8a16]
    #[arg(long, value_enum)]
    pub(crate) weights: Option<Weights>,
    /// Worker threads; the bundle's bytes do not depend on it [default: all processors]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
}

/// The forms in which a bundle can hold a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Weights {
    /// Unquantised, 32-bit floats: for comparing numbers
    F32,
    /// Unquantised, 16-bit floats
    F16,
    /// 8-bit integers with one scale per output channel, 16-bit activations
    W8a16,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let output = output_path(args)?;
    let _libraries = setup::ensure_openvino()?;
    bail!("the compiler is not connected yet: `{}`", output.display())
}

/// `-o`, else `artifacts/bundles/NAME.heg` with the name of the model file or folder.
fn output_path(args: &Args) -> Result<PathBuf> {
    if let Some(output) = &args.output {
        return Ok(output.clone());
    }
    let name = model_name(&args.path)?;
    Ok(root()
        .join("artifacts")
        .join("bundles")
        .join(format!("{name}.heg")))
}

fn model_name(path: &Path) -> Result<String> {
    let shown = path.display();
    let path = path
        .canonicalize()
        .map_err(anyhow::Error::new)
        .with_context(|| Fail::input(format!("no model at `{shown}`")))?;
    let name = match path.is_dir() {
        true => path.file_name(),
        false => path.file_stem(),
    };
    let name =
        name.with_context(|| Fail::input(format!("`{shown}` has no name")).hint(NAME_HINT))?;
    Ok(name.to_string_lossy().into_owned())
}

const NAME_HINT: &str = "say where to write with -o FILE";

const AFTER_HELP: &str = "\
Examples:
  cargo xtask compile-model tests/fixtures/tiny-agent
  cargo xtask compile-model path/to/Llama-3.2-1B-Instruct -o llama.heg
  cargo xtask compile-model tests/fixtures/tiny-agent --weights f32 --threads 1

A folder needs no model file: the architecture is chosen from its config.json. The same model
gives the same bytes on every machine, and a second compile does only what changed.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::exit_status;

    #[test]
    fn a_bundle_is_named_after_its_model() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("tiny-1.5b");
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(model_name(&folder).unwrap(), "tiny-1.5b");
        assert_eq!(
            model_name(&folder.join("..").join("tiny-1.5b")).unwrap(),
            "tiny-1.5b"
        );
        let file = dir.path().join("agent-1.5b.ron");
        std::fs::write(&file, b"").unwrap();
        assert_eq!(model_name(&file).unwrap(), "agent-1.5b");
        assert_eq!(
            exit_status(&model_name(&dir.path().join("no")).unwrap_err()),
            2
        );
    }
}
