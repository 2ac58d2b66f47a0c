//! The shared parts of the end-to-end tests: fixtures, a place to compile in, and the rule for a missing OpenVINO.

pub mod asked;
pub mod fetched;
pub mod golden;
pub mod instance;
pub mod model_folder;
pub mod questions;
pub mod roles;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod soft_npu;
pub mod thinker;

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use heg_compiler::{CompileError, CompileOptions, Places, Silent, Summary, Target, compile};
use heg_runtime::engine::{Engine, Speculation};
use heg_runtime::exec::{Executor, ExecutorOptions, Sequence};
use heg_runtime::{Loaded, RuntimeError};
use heg_sched::{Logits, chunks};
use heg_spec::{GroupColumns, WeightForm};
use heg_text::{Sampler, SamplingParams};
use tempfile::TempDir;

pub use heg_spec::Seeded;

/// Returns the path of a file or folder below `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// The families of `tests/fixtures/golden` whose models give tokens.
pub const FAMILIES: [&str; 10] = [
    "gemma2", "gemma3", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3",
];

/// The families of `tests/fixtures/golden` whose models give vectors.
pub const ENCODERS: [&str; 1] = ["bert"];

/// The families of `tests/fixtures/golden` whose models give scores.
pub const RERANKERS: [&str; 1] = ["bert_reranker"];

/// 4-bit weights in the smallest groups.
pub const fn four_bits(symmetric: bool) -> WeightForm {
    WeightForm::W4A16 {
        group: GroupColumns::SMALLEST,
        symmetric,
    }
}

/// Reports that a test, or a part of it, was skipped. The output of a passing test is not shown, so the line also goes
/// to the file that `HEG_SKIPPED` names, which `cargo xtask test` prints at its end.
pub fn skipped(what: &str) {
    println!("skipped: {what}");
    let Some(path) = std::env::var_os("HEG_SKIPPED") else {
        return;
    };
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{what}\n").as_bytes()));
    if let Err(error) = written {
        println!("skipped, and could not note it: {error}");
    }
}

/// Returns whether tests that run kernels on OpenVINO can run; if not, reports it once per test. If
/// `HEG_REQUIRE_OPENVINO` is set, as by `cargo xtask test`, a missing OpenVINO is a failure.
pub fn openvino_or_skip(test: &str) -> bool {
    match heg_openvino::find_libraries() {
        Ok(_) => true,
        Err(error) => {
            let required = std::env::var_os("HEG_REQUIRE_OPENVINO").is_some();
            assert!(!required, "{test}: {error} (run: cargo xtask setup)");
            skipped(&format!("{test}: {error} (run: cargo xtask setup)"));
            false
        }
    }
}

/// A folder with a store in which bundles are compiled, removed at the end.
pub struct Workbench {
    folder: TempDir,
}

impl Workbench {
    /// Creates an empty workbench.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            folder: TempDir::new()?,
        })
    }

    /// Returns the folder itself.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of a file in the folder.
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
        let places = self.places(name);
        let summary = compile(&target, &places, &CompileOptions::default(), &Silent)?;
        Ok((places.bundle, summary))
    }

    /// Returns the places to which `NAME.heg` is compiled.
    pub fn places(&self, name: &str) -> Places {
        Places {
            bundle: self.path(&format!("{name}.heg")),
            store: self.path("store"),
        }
    }
}

/// Creates an executor for a bundle on a shipped SoC.
pub fn executor(bundle: &Path, soc: &str, chunk_tokens: usize) -> Result<Executor, RuntimeError> {
    let soc = heg_spec::shipped::soc(soc)?;
    let options = ExecutorOptions {
        chunk_tokens,
        batch: 8,
        ..ExecutorOptions::default()
    };
    Loaded::open(bundle)?.executor(&soc, options)
}

/// Starts an engine for one request at a time on a shipped SoC.
pub fn single_engine(
    bundle: &Path,
    soc: &str,
    chunk_tokens: usize,
) -> Result<Engine, RuntimeError> {
    let soc = heg_spec::shipped::soc(soc)?;
    let options = ExecutorOptions {
        chunk_tokens,
        ..ExecutorOptions::default()
    };
    let loader = Loaded::open(bundle)?.loader(&soc)?;
    Ok(Engine::start_single(loader, options, Speculation::Off)?)
}

/// Formats an error with all its causes, as the commands print it, without the folder of the test.
pub fn chain(error: &dyn Error, folder: &Path) -> String {
    let mut text = format!("error: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!("\ncaused by: {cause}"));
        source = cause.source();
    }
    text.replace(&folder.display().to_string(), "[folder]")
}

/// Names of all files below `folder`, hidden ones too, relative to it and in order.
pub fn files_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(folder).unwrap_or(&path).to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Greedy tokens of a prompt, stop tokens ignored: on an executor alone, without the engine.
pub fn greedy(
    executor: &mut Executor,
    sequence: &mut Sequence,
    prompt: &[u32],
    tokens_max: usize,
) -> Result<Vec<u32>, RuntimeError> {
    let mut sampler = Sampler::new(SamplingParams::default(), prompt)?;
    let mut tokens = Vec::new();
    for chunk in chunks(prompt.len(), executor.options().chunk_tokens) {
        let logits = match chunk.end == prompt.len() {
            true => Logits::LastRows,
            false => Logits::None,
        };
        let row = executor.prefill(sequence, &prompt[chunk], logits)?;
        if logits == Logits::LastRows {
            tokens.push(sampler.sample(row)?.0);
        }
    }
    let context = executor.manifest().model.context_tokens as usize;
    while tokens.len() < tokens_max && sequence.tokens() < context {
        let last = tokens[tokens.len() - 1];
        let row = executor.decode(&mut [sequence], &[last])?;
        tokens.push(sampler.sample(row)?.0);
    }
    Ok(tokens)
}

/// Compiles a model that must be refused, and returns the error with all its causes. No bundle and no temporary file
/// may be left, neither at the bundle's place nor in the store.
pub fn refused(
    workbench: &Workbench,
    model: &Path,
    change: impl FnOnce(&mut heg_spec::ModelSpec),
) -> String {
    let text = match workbench.compile(model, "refused", change) {
        Err(error) => chain(&error, workbench.folder()),
        Ok(_) => "compiled".to_owned(),
    };
    format!("{text}{}", left_behind(workbench))
}

/// Returns the files that a failed compile left beside the model and the store's objects, for the end of a message;
/// empty if there are none.
pub fn left_behind(workbench: &Workbench) -> String {
    let files = files_below(workbench.folder()).unwrap_or_default();
    let kept = ["models", "store/blake3", "store/recipes", "store/sources"];
    files
        .iter()
        .filter(|file| !kept.iter().any(|kept| file.starts_with(kept)))
        .map(|file| format!("\nleft behind: {}", file.display()))
        .collect()
}
