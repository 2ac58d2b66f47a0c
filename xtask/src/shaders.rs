//! `cargo xtask shaders`: compiles the GPU's modules from their GLSL with glslang. The modules are committed, together
//! with the hashes of sources and modules and the compiler's version, so that a build needs no shader compiler, and a
//! check finds whether sources and modules still match.

use anyhow::{Context, Result};
use hegc::digest;
use hegc::fail::Fail;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::workspace::{self, note, root};

/// Arguments of `cargo xtask shaders`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Change nothing; fail where sources and committed modules do not belong together
    #[arg(long)]
    pub(crate) check: bool,
}

/// Runs the command. Returns whether glslang was installed; a check of hashes works without it.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let folder = root().join("heg-runtime/gpu");
    let version = version();
    if args.check {
        return check(&folder, version.as_deref());
    }
    let version = version.ok_or_else(|| {
        let hint = "Debian has it in `glslang-tools`";
        Fail::environment("shaders need `glslangValidator`").hint(hint)
    })?;
    let spirv = folder.join("spirv");
    for module in modules(&folder)? {
        compile(&folder, &module, &spirv)?;
    }
    let sums = sums(&folder, &version)?;
    fs::write(folder.join(SUMS), sums).context("cannot write the hashes")?;
    Ok(true)
}

/// A module, and the shader that it is compiled from.
struct Module {
    name: String,
    source: PathBuf,
    /// Whether it uses the dot product instruction.
    dots: bool,
}

/// Modules of all shaders; those that multiply bytes have two variants.
fn modules(folder: &Path) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    for source in files(&folder.join("shaders"), "comp")? {
        let text = fs::read_to_string(&source)
            .with_context(|| format!("cannot read `{}`", source.display()))?;
        let stem = source
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let module = |dots: bool| Module {
            name: if dots {
                format!("{stem}.dot")
            } else {
                stem.clone()
            },
            source: source.clone(),
            dots,
        };
        modules.push(module(false));
        if text.contains("dot4(") || text.contains("integers.glsl") {
            modules.push(module(true));
        }
    }
    Ok(modules)
}

fn compile(folder: &Path, module: &Module, to: &Path) -> Result<()> {
    let mut command = Command::new(GLSLANG);
    command.current_dir(folder.join("shaders")).args(OPTIONS);
    if module.dots {
        command.arg("-DPACKED_DOT");
    }
    command
        .arg("-o")
        .arg(to.join(format!("{}.spv", module.name)));
    command.arg(&module.source);
    let what = format!("glslang on `{}`", module.name);
    workspace::capture(&mut command, &what).map(|_| ())
}

/// Compares hashes, and compares modules with the output of the same compiler version.
fn check(folder: &Path, version: Option<&str>) -> Result<bool> {
    let recorded = fs::read_to_string(folder.join(SUMS)).context("cannot read the hashes")?;
    let of = recorded
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("# ");
    if sums(folder, of)? != recorded {
        return Err(stale(
            "shaders or modules are not those of the recorded hashes",
        ));
    }
    let Some(version) = version else {
        note("glslang is not installed: modules were not compiled again");
        return Ok(false);
    };
    if version != of {
        note(format!(
            "glslang is {version}, modules were made by {of}: not compiled again"
        ));
        return Ok(true);
    }
    let fresh = tempfile::tempdir().context("cannot make a folder")?;
    for module in modules(folder)? {
        compile(folder, &module, fresh.path())?;
        let name = format!("{}.spv", module.name);
        let [ours, theirs] =
            [folder.join("spirv").join(&name), fresh.path().join(&name)].map(|path| {
                fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))
            });
        if ours? != theirs? {
            return Err(stale(&format!(
                "`{name}` is not what its shader compiles to"
            )));
        }
    }
    Ok(true)
}

fn stale(what: &str) -> anyhow::Error {
    Fail::check(what)
        .hint("run `cargo xtask shaders`, and commit what it writes")
        .into()
}

/// The text of the file of hashes.
fn sums(folder: &Path, version: &str) -> Result<String> {
    let mut hashes = BTreeMap::new();
    for (part, extension) in [
        ("shaders", "comp"),
        ("shaders/include", "glsl"),
        ("spirv", "spv"),
    ] {
        for path in files(&folder.join(part), extension)? {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            hashes.insert(format!("{part}/{name}"), digest::of_file(&path)?);
        }
    }
    let mut text = format!("# {version}\n");
    for (name, hash) in hashes {
        let _ = writeln!(text, "{hash}  {name}");
    }
    Ok(text)
}

/// Files of a folder by their extension, in order.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let what = || format!("cannot list `{}`", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(what)? {
        let path = entry.with_context(what)?.path();
        if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The compiler's version, if it is installed.
fn version() -> Option<String> {
    let mut command = Command::new(GLSLANG);
    let said = workspace::capture(command.arg("--version"), "glslang").ok()?;
    said.lines().next().map(str::to_owned)
}

const GLSLANG: &str = "glslangValidator";

/// No debug information, and a version of SPIR-V that all drivers of Vulkan 1.2 support. Optimisation is left to
/// drivers: an optimiser turned a module of 19 KB into one of 285.
const OPTIONS: [&str; 4] = ["-V", "--target-env", "vulkan1.1", "-g0"];

const SUMS: &str = "spirv/SHA256SUMS";

const AFTER_HELP: &str = "\
Examples:
  cargo xtask shaders            compile heg-runtime/gpu/shaders to heg-runtime/gpu/spirv
  cargo xtask shaders --check    say whether what is committed belongs together";
