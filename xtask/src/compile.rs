//! `cargo xtask compile-model`: the command line of the compiler. It chooses the output's name,
//! shows progress and calls `heg-compiler`; everything that happens to the model happens there.

use crate::fail::Fail;
use crate::workspace::{note, root};
use anyhow::{Context, Result};
use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
use heg_compiler::{
    BlobSummary, CompileOptions, Emit, NpuBlobs, Phase, Places, Progress, Summary, Target, Unit,
    Verify,
};
use heg_profiler::measure::Profile;
use heg_spec::{GroupColumns, NpuPlatform, Soc, Source, WeightForm, shipped};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{ErrorKind, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `cargo xtask compile-model`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A model RON file, a GGUF file, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json)
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// File of the bundle [default: artifacts/bundles/NAME.heg]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Name of the model in the bundle [default: the model file's choice, else the folder's or the GGUF file's name]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Weight form of the bundle [default: the model file's choice, else w8a16]
    #[arg(long, value_parser = one_of(&WEIGHT_FORMS))]
    weights: Option<WeightForm>,
    /// Columns that share a scale in w4a16 weights: 32, 64 or 128 [default: 32, as in GGUF files]
    #[arg(long, value_name = "COLUMNS", requires = "weights")]
    group: Option<GroupColumns>,
    /// NPU platforms to compile blobs for, e.g. 3720,4000,5010 [default: the model file's choice, else none]
    #[arg(long, value_name = "PLATFORMS", value_delimiter = ',')]
    npu_platforms: Option<Vec<NpuPlatform>>,
    /// What to do where blobs cannot be made
    #[arg(long, value_parser = one_of(&NPU_BLOBS), default_value = "auto")]
    npu: NpuBlobs,
    /// A profile that `heg profile` wrote, as annotations of that machine; may be given more than once
    #[arg(long = "profile", value_name = "FILE")]
    profiles: Vec<PathBuf>,
    /// A machine whose two devices share products, a shipped SoC or a .ron file: the bundle says how; may be given more than
    /// once
    #[arg(long = "partition", value_name = "SOC")]
    partitions: Vec<String>,
    /// Check the compiler's own work after every pass, as debug builds always do
    #[arg(long)]
    verify: bool,
    /// Stop after this pass, or ask the NPU's compiler this, print what came of it, and write no bundle; reads no weights
    #[arg(long, value_name = "PASS", value_parser = one_of(&PASSES))]
    emit: Option<Emit>,
    /// Worker threads; the bundle's bytes do not depend on it [default: all processors]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// A choice of the command line: its value, its name, and its help.
type Choice<T> = (T, &'static str, &'static str);

/// Values of `--weights`.
const WEIGHT_FORMS: [Choice<WeightForm>; 5] = [
    (
        WeightForm::F32,
        "f32",
        "Unquantised, 32-bit floats: for comparing numbers",
    ),
    (WeightForm::F16, "f16", "Unquantised, 16-bit floats"),
    (
        WeightForm::W8A16,
        "w8a16",
        "8-bit integers with one scale per row; the SoC says what activations are rounded to",
    ),
    (
        in_groups(false),
        "w4a16",
        "4-bit integers with scale and centre per group of columns; activations likewise",
    ),
    (
        in_groups(true),
        "w4a16-symmetric",
        "As w4a16, without centres: fewer bytes and less exact",
    ),
];

const fn in_groups(symmetric: bool) -> WeightForm {
    WeightForm::W4A16 {
        group: GroupColumns::SMALLEST,
        symmetric,
    }
}

/// `--weights` with the groups of `--group`.
fn weights(args: &Args) -> Result<Option<WeightForm>> {
    match (args.weights, args.group) {
        (Some(WeightForm::W4A16 { symmetric, .. }), Some(group)) => {
            Ok(Some(WeightForm::W4A16 { group, symmetric }))
        }
        (Some(_), Some(_)) => Err(Fail::input("`--group` without w4a16 weights")
            .hint("only 4-bit weights have groups of columns"))?,
        (weights, _) => Ok(weights),
    }
}

/// Values of `--npu`.
const NPU_BLOBS: [Choice<NpuBlobs>; 3] = [
    (
        NpuBlobs::WherePossible,
        "auto",
        "Leave the blob out and say so; the device then compiles the kernel itself",
    ),
    (NpuBlobs::Required, "require", "Fail"),
    (NpuBlobs::Off, "off", "Make no blobs at all"),
];

/// Values of `--emit`.
const PASSES: [Choice<Emit>; 7] = [
    (
        Emit::Graph,
        "graph",
        "Operators of every layer and of the head, with shapes and weights",
    ),
    (
        Emit::Heg,
        "heg",
        "Distinct kernels with their ports, and what flows between their places",
    ),
    (
        Emit::Plan,
        "plan",
        "Variants of each kernel, weights as they will be stored, and what each layer uses",
    ),
    (
        Emit::Programs,
        "programs",
        "CPU program of each kernel, a line for each buffer that a step writes",
    ),
    (
        Emit::Ir,
        "ir",
        "OpenVINO IR of every variant, a line for each layer",
    ),
    (
        Emit::Orders,
        "orders",
        "Both orders of the operands of each product, by the NPU compiler's estimates",
    ),
    (
        Emit::Cuts,
        "cuts",
        "NPU blobs of the cuts of each --partition, chosen by the same estimates",
    ),
];

fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let values = choices
        .iter()
        .map(|(_, name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(values).try_map(|found| {
        let choice = choices.iter().find(|(_, name, _)| *name == found);
        choice.map(|(value, ..)| *value).ok_or("no such choice")
    })
}

pub fn run(args: &Args) -> Result<()> {
    let options = options(args)?;
    if let Some(pass) = args.emit {
        return emit(&args.path, &options, pass);
    }
    let output = output_path(args)?;
    let threads = args.threads.map_or(0, NonZeroUsize::get);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .context("cannot start the worker threads")?;
    pool.install(|| compile(&args.path, &output, &options))
}

/// Prints what a pass makes of the model at `path`.
fn emit(path: &Path, options: &CompileOptions, pass: Emit) -> Result<()> {
    let bar = Bar::new();
    let text = Target::read(path)
        .and_then(|target| heg_compiler::emit(&target, &store(), options, pass, &bar));
    bar.finish();
    let text = text.map_err(|error| failure(path, error))?;
    match std::io::stdout().write_all(text.as_bytes()) {
        // `| head` has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Folder of the build cache.
fn store() -> PathBuf {
    root().join("artifacts").join("store")
}

/// Compiles the model at `path` to the bundle `output`, with a progress bar, and says what was done.
pub fn compile(path: &Path, output: &Path, options: &CompileOptions) -> Result<()> {
    println!("{}", compiled(path, output, options)?);
    Ok(())
}

/// As [`compile`], and returns what was done.
pub fn compiled(path: &Path, output: &Path, options: &CompileOptions) -> Result<String> {
    let begin = Instant::now();
    let bar = Bar::new();
    let places = Places {
        bundle: output.to_owned(),
        store: store(),
    };
    let summary: Result<Summary, _> = Target::read(path)
        .and_then(|target| heg_compiler::compile(&target, &places, options, &bar));
    bar.finish();
    let summary = summary.map_err(|error| failure(path, error))?;
    let written = if summary.rewritten {
        "wrote"
    } else {
        "up to date:"
    };
    report_blobs(&summary.npu);
    Ok(format!(
        "{written} {} ({:.1} MB, {} kernels, {} weights, {:.1} s)",
        output.display(),
        summary.bundle_bytes as f64 / 1e6,
        summary.kernels,
        summary.weights,
        begin.elapsed().as_secs_f64()
    ))
}

fn read_profile(file: &Path) -> Result<Profile> {
    let bad = || Fail::input(format!("cannot use the profile `{}`", file.display()));
    let text = std::fs::read_to_string(file)
        .map_err(anyhow::Error::new)
        .with_context(bad)?;
    Profile::parse(&text)
        .map_err(anyhow::Error::new)
        .with_context(bad)
}

/// A shipped SoC by its name, or a file.
fn read_soc(name: &str) -> Result<Soc> {
    let bad = || Fail::input(format!("cannot use the SoC `{name}`"));
    if !name.ends_with(".ron") {
        return shipped::soc(name).with_context(bad);
    }
    let text = std::fs::read_to_string(name).with_context(bad)?;
    let source = Source {
        file: name,
        text: &text,
    };
    Soc::parse(source).with_context(bad)
}

/// What became of the NPU's blobs: those left out one a line, with the reason.
fn report_blobs(npu: &BlobSummary) {
    if npu.blobs > 0 {
        let (blobs, megabytes) = (npu.blobs, npu.bytes as f64 / 1e6);
        println!(
            "{blobs} NPU blobs ({megabytes:.1} MB, {} from the store, {} with weights first)",
            npu.recalled, npu.weights_first
        );
    }
    for cuts in &npu.cuts {
        print!("{cuts}");
    }
    for (what, why) in &npu.left_out {
        note(format!("left out: {what}: {why}"));
    }
}

/// How xtask compiles models for its own commands: int8 weights, no NPU blobs.
pub fn own_use() -> CompileOptions {
    CompileOptions {
        weights: Some(WeightForm::W8A16),
        npu_blobs: NpuBlobs::Off,
        ..CompileOptions::default()
    }
}

fn options(args: &Args) -> Result<CompileOptions> {
    let profiles = args.profiles.iter().map(|file| read_profile(file));
    Ok(CompileOptions {
        name: args.name.clone(),
        weights: weights(args)?,
        npu_platforms: args.npu_platforms.clone(),
        npu_blobs: args.npu,
        profiles: profiles.collect::<Result<_>>()?,
        partitions: args
            .partitions
            .iter()
            .map(|name| read_soc(name))
            .collect::<Result<_>>()?,
        verify: match args.verify {
            true => Verify::Always,
            false => Verify::DebugBuilds,
        },
    })
}

/// A failed compile, with the exit status that says whose fault it is.
fn failure(path: &Path, error: heg_compiler::CompileError) -> anyhow::Error {
    let message = format!("cannot compile `{}`", path.display());
    let fail = match is_environment(&error) {
        true => Fail::environment(message),
        false => Fail::input(message),
    };
    anyhow::Error::new(error).context(fail)
}

/// The system failed rather than the input: something was there and could not be read or written.
fn is_environment(error: &heg_compiler::CompileError) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(current) = cause {
        if let Some(io) = current.downcast_ref::<std::io::Error>() {
            return io.kind() != std::io::ErrorKind::NotFound;
        }
        cause = current.source();
    }
    false
}

/// The compiler's progress on the terminal: one bar, named after the phase.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new(0);
        Self(bar)
    }

    fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn begin(&self, phase: Phase, total: u64) {
        let template = match phase.unit() {
            Unit::Bytes => "{msg:<34} {wide_bar} {bytes}/{total_bytes}",
            Unit::Blobs => "{msg:<34} {wide_bar} {pos}/{len} blobs, {eta} left",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
        self.0.set_message(phase.describe());
        self.0.set_length(total);
        self.0.set_position(0);
    }

    fn advance(&self, amount: u64) {
        self.0.inc(amount);
    }

    fn note(&self, text: &str) {
        self.0.suspend(|| note(text));
    }
}

/// `-o`, else `artifacts/bundles/NAME.heg` with the given name, or that of the model file, GGUF file or folder.
fn output_path(args: &Args) -> Result<PathBuf> {
    if let Some(output) = &args.output {
        return Ok(output.clone());
    }
    let name = match &args.name {
        Some(name) => file_name(name)?,
        None => model_name(&args.path)?,
    };
    Ok(root()
        .join("artifacts")
        .join("bundles")
        .join(format!("{name}.heg")))
}

/// A given name, if it is one for a file too.
fn file_name(name: &str) -> Result<String> {
    match Path::new(name).file_name() {
        Some(file) if file == name && !name.contains(['/', '\\', ':']) => Ok(name.to_owned()),
        _ => Err(Fail::input(format!("`{name}` is no name for a file")).hint(NAME_HINT))?,
    }
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
  cargo xtask compile-model path/to/SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2
  cargo xtask compile-model tests/fixtures/tiny-agent --weights f32 --threads 1
  cargo xtask compile-model path/to/Llama-3.2-1B-Instruct --weights w4a16 --group 128
  cargo xtask compile-model path/to/model --npu-platforms 3720,4000 --npu require
  cargo xtask compile-model path/to/model --profile host-cpu.ron
  cargo xtask compile-model path/to/model --partition core-ultra-5-125h
  cargo xtask compile-model tests/fixtures/tiny-agent --emit heg
  cargo xtask compile-model path/to/Llama-3.2-3B-Instruct --emit orders --npu-platforms 3720,4000

The passes, in order: graph, heg, plan, programs, ir. Each prints what the next one starts from; --verify checks it too.

A folder or a GGUF file needs no model file: the architecture is chosen from what it says. The same model under
the same name gives the same bytes on every machine, and a second compile does only what changed.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::exit_status;

    #[test]
    fn a_name_can_be_that_of_a_file() {
        for name in ["smollm2-135m", "Llama_3.2", "modèle", "7b"] {
            assert_eq!(file_name(name).unwrap(), name);
        }
        for name in ["", ".", "..", "a/b", "a\\b", "C:x"] {
            assert_eq!(exit_status(&file_name(name).unwrap_err()), 2, "{name:?}");
        }
    }

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
        assert_eq!(file_name("smollm2 135m").unwrap(), "smollm2 135m");
        for bad in ["..", "a/b", "/a", "a\\b", "c:d", "a/"] {
            assert_eq!(exit_status(&file_name(bad).unwrap_err()), 2, "{bad}");
        }
        let file = dir.path().join("agent-1.5b.ron");
        std::fs::write(&file, b"").unwrap();
        assert_eq!(model_name(&file).unwrap(), "agent-1.5b");
        assert_eq!(
            exit_status(&model_name(&dir.path().join("no")).unwrap_err()),
            2
        );
    }
}
