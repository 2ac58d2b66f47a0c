//! `cargo xtask model-sheet BUNDLE`: the part of a bundle that the simulator reads, without the weights.

use anyhow::{Context, Result};
use heg_artifacts::Bundle;
use heg_profiler::annotation::Annotations;
use heg_sim::ModelSheet;
use std::path::{Path, PathBuf};
use xtask::fail::Fail;

/// Arguments of `cargo xtask model-sheet`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A bundle with annotations
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
    /// Name of the model in the sheet [default: the bundle's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// File of the sheet [default: NAME.ron]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut sheet = of_bundle(&args.bundle)?;
    if let Some(name) = &args.name {
        sheet.model.name.clone_from(name);
    }
    let text = sheet.to_text()?;
    let named = || PathBuf::from(format!("{}.ron", sheet.model.name));
    let output = args.output.clone().unwrap_or_else(named);
    std::fs::write(&output, &text)
        .with_context(|| Fail::environment(format!("cannot write `{}`", output.display())))?;
    println!("wrote {} ({} bytes)", output.display(), text.len());
    Ok(())
}

/// The sheet of a bundle's model.
pub(crate) fn of_bundle(path: &Path) -> Result<ModelSheet> {
    let shown = path.display();
    let refuse = || Fail::input(format!("cannot use bundle `{shown}`"));
    let bundle = Bundle::open(path).with_context(refuse)?;
    let manifest = bundle.manifest();
    let Some(section) = manifest.annotations else {
        let fail = Fail::input(format!("bundle `{shown}` has no annotations"));
        return Err(fail.hint("compile it again with `hegc compile`").into());
    };
    let bytes = bundle.section(section).with_context(refuse)?;
    let text = std::str::from_utf8(bytes).with_context(refuse)?;
    let annotations = Annotations::parse(text).with_context(refuse)?;
    Ok(ModelSheet::of(manifest, annotations))
}
