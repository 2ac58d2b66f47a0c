//! A folder of kept state: its pages, and whether they are in memory.

use crate::disk;
use anyhow::{Context, Result};
use heg_state::{HEAD_BYTES, LEFTOVER, PAGE_TOKENS};
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use xtask::fail::Fail;
use xtask::workspace::target_dir;

/// A folder for a server's pages, removed with the value.
pub(super) struct KeptFolder(TempDir);

impl KeptFolder {
    /// A new folder on the disk of the checkout, whose pages are read back from there.
    pub(super) fn new() -> Result<Self> {
        let within = target_dir();
        fs::create_dir_all(&within)
            .and_then(|()| TempDir::new_in(&within))
            .map(Self)
            .with_context(|| Fail::environment(format!("cannot write `{}`", within.display())))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Waits until it has the pages of `tokens`.
    pub(super) fn wait_for(&self, tokens: usize) -> Result<()> {
        let begin = Instant::now();
        while self.pages()?.len() < tokens / PAGE_TOKENS {
            if begin.elapsed() > PATIENCE {
                let found = self.pages()?.len();
                let message = format!("a server kept {found} pages of {tokens} tokens");
                return Err(Fail::check(message).into());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Bytes of all pages.
    pub(super) fn bytes(&self) -> Result<u64> {
        let pages = self.pages()?;
        let each = pages.iter().map(|page| Ok(fs::metadata(page)?.len()));
        each.sum()
    }

    /// Has the system forget the pages, so that they have to be read from the disk.
    pub(super) fn forget(&self) -> Result<()> {
        for page in self.pages()? {
            disk::forget(&page)?;
        }
        Ok(())
    }

    /// Reads all pages, one after the other, and returns how long that took.
    pub(super) fn read_ms(&self) -> Result<f64> {
        let pages = self.pages()?;
        let begin = Instant::now();
        pages.iter().try_for_each(|page| disk::read(page))?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }

    /// Files with rows of keys and values: others are smaller than a page's head, or have no name of their own yet.
    fn pages(&self) -> Result<Vec<PathBuf>> {
        let (mut folders, mut found) = (vec![self.path().to_owned()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                // A page that is written is renamed meanwhile.
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                match metadata.is_dir() {
                    true => folders.push(entry.path()),
                    false if metadata.len() > HEAD_BYTES as u64 && !is_unfinished(&entry) => {
                        found.push(entry.path());
                    }
                    false => {}
                }
            }
        }
        found.sort();
        Ok(found)
    }
}

/// Whether a page is still being written: a server that is killed now leaves none.
fn is_unfinished(entry: &DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with(LEFTOVER)
}

/// Chosen: pages are written in seconds.
const PATIENCE: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_read_and_forgotten() {
        let folder = KeptFolder::new().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/page"), vec![1; 8192]).unwrap();
        fs::write(folder.path().join("page"), vec![1; 4097]).unwrap();
        fs::write(folder.path().join(format!("{LEFTOVER}1")), vec![1; 8192]).unwrap();
        fs::write(folder.path().join("key"), [1; 32]).unwrap();
        folder.wait_for(2 * PAGE_TOKENS).unwrap();
        assert_eq!(folder.bytes().unwrap(), 8192 + 4097);
        folder.forget().unwrap();
        assert!(folder.read_ms().unwrap() > 0.0);
    }
}
