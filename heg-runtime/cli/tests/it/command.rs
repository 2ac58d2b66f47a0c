//! Runs `heg` to its end, and returns its output for a person.

use std::path::Path;
use std::process::Command;

/// Runs `heg` in `folder`; returns its exit status, standard output and standard error as one text.
pub(crate) fn heg(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_heg"))
        .args(arguments)
        .current_dir(folder)
        .env("HEG_CACHE_DIR", folder.join("cache"))
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    format!(
        "exit status {}\n--- stdout\n{}--- stderr\n{}",
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap()
    )
}
