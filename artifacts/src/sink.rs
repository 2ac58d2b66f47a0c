//! The destination of a new section's bytes: a temporary file and the hash at once.
//!
//! Memory use is constant however long the section gets. The sink gathers small writes (one half-float at a time is
//! fine) into blocks that suit both the hash's vector units and the file system; large writes pass through. The
//! section's name is only known after the last byte, so the file gets it then.

use std::io::{self, Write};

use heg_files::TempFile;

use crate::content_id::SectionId;
use crate::error::Error;
use crate::manifest::Section;

/// A section being written; see [`crate::Store::put`].
///
/// [`Write`] is there for encoders; callers that already have the bytes use [`SectionSink::push`], whose error names
/// the file.
#[derive(Debug)]
pub struct SectionSink {
    temp: TempFile,
    hasher: blake3::Hasher,
    block: Vec<u8>,
    bytes: u64,
    /// Whether a write failed: the file then differs from the hashed bytes, and no later success can mend that.
    failed: bool,
    /// For tests: takes the bytes instead of the file and fails, as a full disk would.
    #[cfg(test)]
    full_disk: Option<std::fs::File>,
}

impl SectionSink {
    pub(crate) fn new(temp: TempFile) -> Self {
        Self {
            temp,
            hasher: blake3::Hasher::new(),
            block: Vec::with_capacity(BLOCK_BYTES),
            bytes: 0,
            failed: false,
            #[cfg(test)]
            full_disk: None,
        }
    }

    /// Appends bytes.
    ///
    /// Errors: [`Error::Io`], typically a full disk.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write_all(bytes)
            .map_err(Error::io("write", self.temp.path()))
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the bytes that are still in memory and names the section.
    pub(crate) fn finish(mut self) -> Result<(Section, TempFile), Error> {
        self.write_block()
            .map_err(Error::io("write", self.temp.path()))?;
        let id = SectionId::from(self.hasher.finalize());
        Ok((
            Section {
                id,
                bytes: self.bytes,
            },
            self.temp,
        ))
    }

    fn write_block(&mut self) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        self.write_through(&block)?;
        self.block = block;
        self.block.clear();
        Ok(())
    }

    fn file(&self) -> &std::fs::File {
        #[cfg(test)]
        if let Some(file) = &self.full_disk {
            return file;
        }
        self.temp.file()
    }

    /// Writes to the file. After one failure it always fails: callers of [`Write`] may have swallowed the first error.
    fn write_through(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier write failed"));
        }
        self.hasher.update(bytes);
        let written = self.file().write_all(bytes);
        self.failed = written.is_err();
        written
    }
}

impl Write for SectionSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.block.len() + bytes.len() > BLOCK_BYTES {
            self.write_block()?;
        }
        if bytes.len() >= BLOCK_BYTES {
            self.write_through(bytes)?;
        } else {
            self.block.extend_from_slice(bytes);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Does nothing: the sink decides when to write.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Large enough for blake3's widest vector code (16 KiB at a time) and for few system calls. Chosen, not measured.
const BLOCK_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink whose file cannot be written: it is a handle for reading.
    fn unwritable(folder: &std::path::Path) -> SectionSink {
        let temp = TempFile::create(folder, "").unwrap();
        let reading = std::fs::File::open(temp.path()).unwrap();
        let mut sink = SectionSink::new(temp);
        sink.full_disk = Some(reading);
        sink
    }

    #[test]
    fn a_swallowed_error_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = unwritable(folder.path());
        let error = sink.push(&[0; BLOCK_BYTES]).unwrap_err().to_string();
        assert!(error.starts_with("cannot write `"), "{error}");
        let _swallowed = sink.push(b"more");
        assert!(sink.finish().is_err());
        let mut sink = unwritable(folder.path());
        sink.push(b"little").unwrap();
        assert!(sink.finish().is_err());
        assert!(folder.path().read_dir().unwrap().next().is_none());
    }
}
