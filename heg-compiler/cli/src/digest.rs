//! SHA-256 of files in hexadecimal, as in package indexes and model cards.

use crate::fail::Fail;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// SHA-256 of a file that the user named or that our own program wrote.
pub fn of_file(path: &Path) -> Result<String> {
    let what = || format!("cannot read `{}`", path.display());
    let mut file =
        File::open(path).map_err(|e| anyhow::Error::new(e).context(Fail::input(what())))?;
    let mut hasher = Sha256::new();
    update(&mut hasher, &mut file).with_context(what)?;
    Ok(hex(hasher))
}

/// SHA-256 of bytes.
pub fn of(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

/// Hashes the rest of `source`; returns the number of bytes.
pub fn update(hasher: &mut Sha256, source: &mut impl Read) -> std::io::Result<u64> {
    let mut buffer = vec![0_u8; 1 << 20];
    let mut length = 0;
    loop {
        match source.read(&mut buffer)? {
            0 => return Ok(length),
            n => {
                hasher.update(&buffer[..n]);
                length += n as u64;
            }
        }
    }
}

/// Finishes a hash, in hexadecimal.
pub fn hex(hasher: Sha256) -> String {
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
