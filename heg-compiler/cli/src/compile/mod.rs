//! `hegc compile`: the command line of the compiler. It chooses the output's name, shows progress and calls
//! `heg-compiler`; everything that happens to the model happens there.

mod choices;
mod progress;
mod sharing;

use crate::fail::Fail;
use crate::output::OutputFolder;
use crate::terminal::note;
use anyhow::{Context, Result};
use choices::{KV_FORMS, NPU_BLOBS, PASSES, WEIGHT_FORMS, one_of};
use clap::builder::NonEmptyStringValueParser;
use heg_compiler::{
    BlobSummary, CompileOptions, Emit, GpuModules, NarrowKv, NpuBlobs, Places, Summary, Target,
    Verify,
};
use heg_confine::{Confined, TextWorker, WorkerAssets, WorkerProgram, probe};
use heg_ingest::ModelSource;
use heg_profiler::measure::Profile;
use heg_spec::{GroupColumns, KvForm, NpuPlatform, Soc, Source, WeightForm, shipped};
use progress::Bar;
use sharing::SharingArgs;
use std::io::{ErrorKind, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `hegc compile`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A model RON file, a GGUF file, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json)
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// File of the bundle [default: bundles/NAME.heg]
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
    /// Keys and values of CPU programs beside integer weights [default: the model file's choice, else bf16]
    #[arg(long, value_parser = one_of(&KV_FORMS))]
    kv: Option<KvForm>,
    /// NPU platforms to compile blobs for, e.g. 3720,4000,5010 [default: the model file's choice, else none]
    #[arg(long, value_name = "PLATFORMS", value_delimiter = ',')]
    npu_platforms: Option<Vec<NpuPlatform>>,
    /// What to do where blobs cannot be made
    #[arg(long, value_parser = one_of(&NPU_BLOBS), default_value = "auto")]
    npu: NpuBlobs,
    /// Leave out the modules with which GPUs run the bundle's programs; GPUs then run modules of the runtime
    #[arg(long)]
    no_gpu: bool,
    /// A profile that `heg profile` wrote, as annotations of that machine; may be given more than once
    #[arg(long = "profile", value_name = "FILE")]
    profiles: Vec<PathBuf>,
    /// A machine whose two devices share products, a shipped SoC or a .ron file: the bundle says how, and has an NPU's pieces of
    /// them where the CPU is the other device; may be given more than once
    #[arg(long = "partition", value_name = "SOC")]
    partitions: Vec<String>,
    #[command(flatten)]
    sharing: SharingArgs,
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

/// Combines `--weights` with the group size of `--group`.
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

/// Compiles the model that `args` name, into `output` unless they name another place; or prints the result of a pass.
pub fn run(args: &Args, output: &OutputFolder) -> Result<()> {
    let options = options(args)?;
    if let Some(pass) = args.emit {
        return emit(&args.path, &output.store(), &options, pass);
    }
    check_text(&args.path)?;
    let bundle = bundle_path(args, output)?;
    let threads = args.threads.map_or(0, NonZeroUsize::get);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .context("cannot start the worker threads")?;
    pool.install(|| {
        println!(
            "{}",
            compile(&args.path, &bundle, &output.store(), &options)?
        );
        Ok(())
    })
}

/// Refuses a model whose text assets cannot make a prompt: `heg` would refuse its bundle. Text assets that cannot be
/// read at all are left to the compiler to report.
fn check_text(path: &Path) -> Result<()> {
    let Ok(target) = Target::read(path) else {
        return Ok(());
    };
    let Ok(ModelSource { text, .. }) = ModelSource::open(&target.spec.source) else {
        return Ok(());
    };
    let (Some(_), has_template) = (&text.tokenizer, text.chat_template.is_some()) else {
        return Ok(());
    };
    let assets = WorkerAssets {
        tokenizer: text.tokenizer,
        template: text.chat_template,
        special_tokens: text.special_tokens,
        eos_ids: text.eos_ids,
    };
    let program = WorkerProgram::this(crate::TEXT_WORKER);
    let worker = TextWorker::start(program, move || Ok(assets.clone()));
    let message = || {
        format!(
            "cannot compile `{}`: its text side cannot be used",
            path.display()
        )
    };
    probe(&worker, has_template).map_err(|error| match error {
        Confined::Lost { .. } => anyhow::Error::new(error).context(Fail::environment(message())),
        error => anyhow::Error::new(error).context(Fail::input(message())),
    })
}

/// Prints the result of a pass over the model at `path`.
fn emit(path: &Path, store: &Path, options: &CompileOptions, pass: Emit) -> Result<()> {
    let bar = Bar::new();
    let text = Target::read(path)
        .and_then(|target| heg_compiler::emit(&target, store, options, pass, &bar));
    bar.finish();
    let text = text.map_err(|error| failure(path, error))?;
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader, e.g. `| head`, has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Compiles the model at `path` to the file `bundle`, with a progress bar. Returns a line about the result.
pub fn compile(
    path: &Path,
    bundle: &Path,
    store: &Path,
    options: &CompileOptions,
) -> Result<String> {
    let begin = Instant::now();
    let bar = Bar::new();
    let places = Places {
        bundle: bundle.to_owned(),
        store: store.to_owned(),
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
    summary.narrow_kv.iter().for_each(report_narrow_kv);
    Ok(format!(
        "{written} {} ({:.1} MB, {} kernels, {} weights, {:.1} s)",
        bundle.display(),
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

/// Reads a shipped SoC by its name, or a file.
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

/// Reports the NPU's blobs: those left out, one per line, with the reason.
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

/// Says what keys and values of 8 bits save, and how to find out what they cost.
fn report_narrow_kv(kv: &NarrowKv) {
    let NarrowKv {
        i8_bytes,
        bf16_bytes,
    } = kv;
    note(format!(
        "keys and values take {i8_bytes} bytes a token in place of {bf16_bytes}; `heg score --against` a bundle of the model \
         in f32, with `--kv bf16` and without, says what that costs: 0.0003 nats with the models that HEG was measured with"
    ));
}

/// Options with which commands of `cargo xtask` compile models for their own use: int8 weights, no NPU blobs.
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
        kv: args.kv,
        npu_platforms: args.npu_platforms.clone(),
        npu_blobs: args.npu,
        gpu_modules: match args.no_gpu {
            true => GpuModules::Off,
            false => GpuModules::Included,
        },
        profiles: profiles.collect::<Result<_>>()?,
        partitions: args
            .partitions
            .iter()
            .map(|name| read_soc(name))
            .collect::<Result<_>>()?,
        sharing: args.sharing.read()?,
        verify: match args.verify {
            true => Verify::Always,
            false => Verify::DebugBuilds,
        },
    })
}

/// The error of a failed compile, with the exit status for its cause.
fn failure(path: &Path, error: heg_compiler::CompileError) -> anyhow::Error {
    let message = format!("cannot compile `{}`", path.display());
    let fail = match is_environment(&error) {
        true => Fail::environment(message),
        false => Fail::input(message),
    };
    anyhow::Error::new(error).context(fail)
}

/// Whether the system failed rather than the input: an existing file could not be read or written.
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

/// Returns `-o`, or else `NAME.heg` in `output` with the given name, or that of the model file, GGUF file or folder.
fn bundle_path(args: &Args, output: &OutputFolder) -> Result<PathBuf> {
    if let Some(output) = &args.output {
        return Ok(output.clone());
    }
    let name = match &args.name {
        Some(name) => file_name(name)?,
        None => model_name(&args.path)?,
    };
    Ok(output.bundle(&name))
}

/// Returns a given name if it is valid as a file name.
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
  hegc compile tests/fixtures/tiny-agent
  hegc compile path/to/Llama-3.2-1B-Instruct -o llama.heg
  hegc compile path/to/SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2
  hegc compile tests/fixtures/tiny-agent --weights f32 --threads 1
  hegc compile path/to/Llama-3.2-1B-Instruct --weights w4a16 --group 128
  hegc compile path/to/model --npu-platforms 3720,4000 --npu require
  hegc compile path/to/model --profile host-cpu.ron
  hegc compile path/to/model --partition core-ultra-5-125h
  hegc compile path/to/model --store-key farm.key --shared-store s3://bucket/heg
  hegc compile tests/fixtures/tiny-agent --emit heg
  hegc compile path/to/Llama-3.2-3B-Instruct --emit orders --npu-platforms 3720,4000

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
