//! An old glibc to link with, so that what is built here runs on older systems: its libraries without their code, the
//! object that starts a program, and the few functions that are linked into each. Zig knows all versions, and writes
//! these files for any program that it links. It links nothing of ours: LLD does, and folds equal functions.

use super::glibc::{Glibc, OLDEST};
use crate::venv;
use crate::workspace::{self, target_dir};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fetches Zig, unless it is there.
pub(super) fn zig() -> Result<Command> {
    let folder = target_dir().join("zig");
    let bin = venv::ensure(&folder, venv::ZIG, "Zig, 440 MB on disk, once")?;
    let mut command = Command::new(bin.join("python"));
    command.args(["-m", "ziglang"]);
    Ok(command)
}

/// Writes the oldest glibc that is supported to `folder`, for a compiler's option `-B`.
pub(super) fn write(zig: Command, folder: &Path) -> Result<()> {
    write_version(zig, OLDEST, folder)
        .with_context(|| format!("cannot write glibc {OLDEST} to `{}`", folder.display()))
}

fn write_version(mut zig: Command, version: Glibc, folder: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let scratch = scratch.path();
    fs::write(scratch.join("empty.c"), "int main(void) { return 0; }\n")?;
    let target = format!("x86_64-linux-gnu.{version}");
    // Its own libraries would be compiled for a minute, and no program of ours needs them.
    let without = ["-fno-compiler-rt", "-fno-ubsan-rt", "-fstrip"];
    zig.args(["build-exe", "empty.c", "-lc", "-fPIE", "-target", &target])
        .args(without)
        .args(["--cache-dir", "cache", "--global-cache-dir", "cache"])
        .current_dir(scratch);
    workspace::capture(&mut zig, "zig")?;
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for name in FILES {
        let built = find(&scratch.join("cache"), name)?;
        let built = built.with_context(|| format!("zig wrote no `{name}`"))?;
        fs::copy(built, folder.join(name))?;
    }
    // What `-lc` and others stand for: scripts for a linker, such as distributions have.
    for (name, files) in SCRIPTS {
        fs::write(folder.join(name), format!("INPUT({files})\n"))?;
    }
    Ok(())
}

/// A file of this name somewhere below a folder.
fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = match entry.file_type()?.is_dir() {
            true => find(&entry.path(), name)?,
            false => (entry.file_name() == name).then(|| entry.path()),
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

const FILES: [&str; 9] = [
    "Scrt1.o",
    "libc_nonshared.a",
    "libc.so.6",
    "libdl.so.2",
    "libld.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
];

const SCRIPTS: [(&str, &str); 6] = [
    (
        "libc.so",
        "libc.so.6 libc_nonshared.a AS_NEEDED(libld.so.2)",
    ),
    ("libdl.so", "libdl.so.2"),
    ("libm.so", "libm.so.6"),
    ("libpthread.so", "libpthread.so.0"),
    ("librt.so", "librt.so.1"),
    ("libutil.so", "libutil.so.1"),
];

#[cfg(test)]
mod tests {
    use super::super::glibc;
    use super::*;

    /// Has threads, files and mathematics, whose versions changed in 2.34, 2.33 and 2.29.
    const PROGRAM: &str = "\
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
static void *nothing(void *it) { return it; }
int main(int count, char **arguments) {
    struct stat found;
    pthread_t thread;
    return stat(arguments[0], &found) || pthread_create(&thread, 0, nothing, 0)
        || pthread_join(thread, 0) || pow(count, 2) != 1;
}
";

    #[test]
    fn a_program_needs_no_newer_glibc_than_it_was_linked_with() {
        if !target_dir().join("zig/packages.txt").is_file() {
            return println!("skipped: no Zig here (run: cargo xtask dist)");
        }
        let scratch = tempfile::tempdir().unwrap();
        let [stubs, source, program] = ["glibc", "it.c", "it"].map(|it| scratch.path().join(it));
        write(zig().unwrap(), &stubs).unwrap();
        fs::write(&source, PROGRAM).unwrap();
        let linked = |options: &[&str]| {
            let mut cc = Command::new("cc");
            cc.args(options).arg("-o").arg(&program).arg(&source);
            workspace::capture(cc.args(["-lm", "-lpthread"]), "cc").unwrap();
            assert!(Command::new(&program).status().unwrap().success());
            glibc::newest_needed(&[&fs::read(&program).unwrap()]).unwrap()
        };
        assert!(linked(&["-B", stubs.to_str().unwrap()]) <= OLDEST);
        if cfg!(target_env = "gnu") {
            assert!(linked(&[]) > OLDEST, "this machine's own is no older");
        }
    }
}
