//! `cargo xtask dist`: what somebody installs who does not build: archives of the commands and of `libheg`, a Debian
//! package, a Python wheel, and their checksums. Made of the same commit, they are the same bytes, in whatever folder and
//! whenever: paths are remapped, entries sorted, and the only time is the commit's.

mod archive;
mod build;
mod debian;
mod glibc;
mod licences;
mod package;
mod same;
mod size;
mod stubs;
mod wheel;

use crate::fail::Fail;
use crate::setup;
use crate::workspace::{self, note};
use anyhow::{Context, Result};
pub use archive::Compression;
use archive::Entry;
use build::Foreign;
use package::Licences;
pub use package::{Binaries, Shipment};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
pub use wheel::write as write_wheel;

/// Arguments of `cargo xtask dist`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The folder to write to
    #[arg(long, value_name = "DIR", default_value = "dist")]
    to: PathBuf,
    /// Pack what is in this folder, `heg`, `hegc`, `libheg.so`, `libheg.a`, `heg-static` and `heg.exe`, instead of building it
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// Leave out the `heg` that needs no library of the system
    #[arg(long, conflicts_with = "binaries")]
    without_static: bool,
    /// Leave out the `heg` for Windows
    #[arg(long, conflicts_with = "binaries")]
    without_windows: bool,
    /// Sign the checksums with this secret key, by `minisign`
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let folder = match &args.binaries {
        Some(folder) => folder.clone(),
        None => build::build(&args.foreign())?,
    };
    let release = Shipment::of_checkout()?;
    let binaries = Binaries::read(&folder)?;
    // What somebody brings may be of another profile.
    if args.binaries.is_none() {
        size::check(&binaries.heg)?;
    }
    same::check(&folder, &binaries)?;
    let oldest = glibc::newest_needed(&[&binaries.heg, &binaries.hegc, &binaries.libheg])?;
    note(format!("needs glibc {oldest} or later"));
    if args.binaries.is_none() {
        glibc::check(oldest)?;
    }
    let pages = pages(&folder)?;
    let licences = Licences {
        linux: licences::of(&["heg", "hegc", "heg-capi"], "x86_64-unknown-linux-gnu")?,
        windows: match binaries.heg_windows {
            Some(_) => licences::of(&["heg"], setup::WINDOWS_TARGET)?,
            None => String::new(),
        },
    };
    let files = package::files(&release, &binaries, &pages, &licences, oldest)?;
    fs::create_dir_all(&args.to).with_context(|| format!("cannot make `{}`", args.to.display()))?;
    let mut sums = String::new();
    for file in &files {
        let path = args.to.join(&file.name);
        heg_files::write_whole(&path, &[&file.bytes])?;
        println!(
            "{:9.2} MB  {}",
            file.bytes.len() as f64 / 1e6,
            path.display()
        );
        sums.push_str(&format!(
            "{}  {}\n",
            hegc::digest::of(&file.bytes),
            file.name
        ));
    }
    let sums_path = args.to.join("SHA256SUMS");
    heg_files::write_whole(&sums_path, &[sums.as_bytes()])?;
    match &args.key {
        Some(key) => sign(&sums_path, key),
        None => Ok(()),
    }
}

impl Args {
    /// What is built for other systems.
    fn foreign(&self) -> Vec<Foreign> {
        let each = [
            (self.without_static, build::STATIC),
            (self.without_windows, build::WINDOWS),
        ];
        let wanted = each.into_iter().filter(|(without, _)| !without);
        wanted.map(|(_, foreign)| foreign).collect()
    }
}

/// The completions and man pages of both commands, which they write themselves.
fn pages(folder: &Path) -> Result<Vec<Entry>> {
    let written = tempfile::tempdir().context("cannot make a folder for pages")?;
    for name in ["heg", "hegc"] {
        let mut command = Command::new(folder.join(name));
        workspace::capture(command.arg("pages").arg(written.path()), name)?;
    }
    archive::entries(written.path())
}

/// Signs the checksums; minisign asks for the password of the key, if it has one.
fn sign(sums: &Path, key: &Path) -> Result<()> {
    let mut command = Command::new("minisign");
    command.arg("-S").arg("-s").arg(key).arg("-m").arg(sums);
    workspace::run(&mut command, "minisign").context(
        Fail::environment("cannot sign the checksums")
            .hint("install minisign (Debian: `apt-get install minisign`)"),
    )
}

const AFTER_HELP: &str = "\
Examples:
  cargo xtask dist                              builds for release, and writes to `dist`
  cargo xtask dist --key ~/.minisign/heg.key    and signs SHA256SUMS
  cargo xtask dist --binaries target/debug      packs what is there, to try it";

#[cfg(test)]
mod tests;
