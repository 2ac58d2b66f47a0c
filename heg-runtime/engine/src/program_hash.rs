//! The hash of the running program, which decides the bits of what it computes.

use std::fs::File;
use std::io;
use std::sync::OnceLock;

use heg_artifacts::SectionId;

/// Returns the hash of this process's program; `None` if its file cannot be read. The first call reads the file.
pub(super) fn program_hash() -> Option<SectionId> {
    static HASH: OnceLock<Option<SectionId>> = OnceLock::new();
    *HASH.get_or_init(|| hash().ok())
}

fn hash() -> io::Result<SectionId> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(program()?)?;
    Ok(hasher.finalize().into())
}

/// Opens the file of the program, also if it was replaced since.
fn program() -> io::Result<File> {
    match File::open("/proc/self/exe") {
        Ok(file) => Ok(file),
        Err(_) => File::open(std::env::current_exe()?),
    }
}
