//! A folder that machines share, beside the folder of each.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use heg_artifacts::SharedPlace;
use heg_files::TempFile;
use url::Url;

use crate::BucketError;

/// A folder as a bucket.
#[derive(Debug)]
pub(crate) struct Folder {
    label: String,
    path: PathBuf,
    /// Folder of files that are not whole yet.
    unfinished: PathBuf,
}

impl Folder {
    pub(crate) fn new(url: &Url) -> Result<Self, BucketError> {
        let failed = |source| BucketError::Folder {
            url: url.to_string(),
            source,
        };
        let path = url.to_file_path();
        let path = path.map_err(|()| failed(ErrorKind::InvalidInput.into()))?;
        let unfinished = path.join("tmp");
        fs::create_dir_all(&unfinished).map_err(failed)?;
        Ok(Self {
            label: url.to_string(),
            path,
            unfinished,
        })
    }
}

impl SharedPlace for Folder {
    fn label(&self) -> &str {
        &self.label
    }

    fn length(&self, name: &str) -> io::Result<Option<u64>> {
        match fs::metadata(self.path.join(name)) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn fetch(&self, name: &str, bytes: u64, to: &mut dyn Write) -> io::Result<()> {
        let mut file = File::open(self.path.join(name))?.take(bytes);
        match io::copy(&mut file, to)? == bytes {
            true => Ok(()),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn send(&self, name: &str, from: &Path) -> io::Result<()> {
        let target = self.path.join(name);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        let temp = TempFile::create(&self.unfinished, "").map_err(io::Error::other)?;
        io::copy(&mut File::open(from)?, &mut temp.file())?;
        temp.rename(&target).map_err(io::Error::other)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
