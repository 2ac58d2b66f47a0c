//! What the end-to-end tests share: fixtures, a place to compile in, and the rule for a missing OpenVINO.

use std::path::{Path, PathBuf};

use heg_artifacts::manifest::WeightForm;
use heg_compiler::{CompileError, Places, Silent, Summary, Target, compile};
use heg_runtime::exec::{Executor, ExecutorOptions};
use heg_runtime::{Loaded, RuntimeError};
use tempfile::TempDir;

/// Path of a file or folder below `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// The families of `tests/fixtures/golden`.
pub const FAMILIES: [&str; 10] = [
    "gemma2", "gemma3", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3",
];

/// Whether tests that run models can: where not, says so once per test.
pub fn openvino_or_skip(test: &str) -> bool {
    match heg_openvino::find_libraries() {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {test}: {error} (run: cargo xtask setup)");
            false
        }
    }
}

/// A folder with a store in which bundles are compiled, removed at the end.
pub struct Workbench {
    folder: TempDir,
}

impl Workbench {
    /// An empty workbench.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            folder: TempDir::new()?,
        })
    }

    /// Path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles a model folder to `NAME.heg`, with changes to its spec.
    pub fn compile(
        &self,
        model: &Path,
        name: &str,
        change: impl FnOnce(&mut heg_spec::ModelSpec),
    ) -> Result<(PathBuf, Summary), CompileError> {
        let mut target = Target::read(model)?;
        change(&mut target.spec);
        let places = Places {
            bundle: self.path(&format!("{name}.heg")),
            store: self.path("store"),
        };
        let summary = compile(&target, &places, &Silent)?;
        Ok((places.bundle, summary))
    }
}

/// An executor for a bundle on a shipped SoC.
pub fn executor(bundle: &Path, soc: &str, chunk_tokens: usize) -> Result<Executor, RuntimeError> {
    let soc = heg_spec::shipped::soc(soc)?;
    let options = ExecutorOptions {
        chunk_tokens,
        batch: 8,
        ..ExecutorOptions::default()
    };
    Loaded::open(bundle)?.executor(&soc, options)
}

/// The spec's name of a bundle's weight form.
pub fn spec_form(form: WeightForm) -> heg_spec::model::WeightForm {
    match form {
        WeightForm::F32 => heg_spec::model::WeightForm::F32,
        WeightForm::F16 => heg_spec::model::WeightForm::F16,
        WeightForm::W8A16 => heg_spec::model::WeightForm::W8A16,
    }
}
