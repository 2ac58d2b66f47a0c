//! Rows of logits in a file: one f32 per vocabulary entry each, in the order of the scored positions. A thousand rows
//! of a large vocabulary take a gigabyte, so they are written and read one by one.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

/// Writes rows.
pub(super) struct RowWriter(BufWriter<File>);

impl RowWriter {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path);
        let file = file.with_context(|| format!("cannot create `{}`", path.display()))?;
        Ok(Self(BufWriter::new(file)))
    }

    pub(super) fn push(&mut self, row: &[f32]) -> Result<()> {
        let bytes: Vec<u8> = row.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        self.0.write_all(&bytes).context("cannot write logits")
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.0.flush().context("cannot write logits")
    }
}

/// Reads rows of `vocab` logits.
pub(super) struct RowReader {
    file: BufReader<File>,
    bytes: Vec<u8>,
    row: Vec<f32>,
}

impl RowReader {
    pub(super) fn open(path: &Path, vocab: usize) -> Result<Self> {
        let file = File::open(path);
        let file = file.with_context(|| format!("cannot open `{}`", path.display()))?;
        Ok(Self {
            file: BufReader::new(file),
            bytes: vec![0; 4 * vocab],
            row: Vec::with_capacity(vocab),
        })
    }

    /// The next row.
    pub(super) fn next(&mut self) -> Result<&[f32]> {
        let read = self.file.read_exact(&mut self.bytes);
        read.context("there are fewer rows of logits than positions")?;
        let (each, _) = self.bytes.as_chunks();
        self.row.clear();
        self.row
            .extend(each.iter().map(|four| f32::from_le_bytes(*four)));
        Ok(&self.row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let mut writer = RowWriter::create(&path).unwrap();
        writer.push(&[1.0, -2.5]).unwrap();
        writer.push(&[f32::MIN, 0.0]).unwrap();
        writer.finish().unwrap();
        let mut reader = RowReader::open(&path, 2).unwrap();
        assert_eq!(reader.next().unwrap(), [1.0, -2.5]);
        assert_eq!(reader.next().unwrap(), [f32::MIN, 0.0]);
        assert!(reader.next().is_err());
    }
}
