//! A program in C, compiled with the system's compiler and linked to the shared library of this build.

use std::path::{Path, PathBuf};
use std::process::Command;

use heg_tests::{Workbench, fixture, skipped};

/// The shared library that cargo built for this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libheg.so")
}

fn capi(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn a_program_in_c_streams_hears_cancels_and_is_refused() {
    if Command::new("cc").arg("--version").output().is_err() {
        skipped("a program in C over libheg: there is no `cc`");
        return;
    }
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "agent", |_| {});
    let (bundle, _) = compiled.unwrap();
    let program = workbench.path("program");
    let compiling = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-I",
        ])
        .arg(capi("include"))
        .arg(capi("tests/it/program.c"))
        .arg(library())
        .arg("-o")
        .arg(&program)
        .output();
    let compiling = compiling.unwrap();
    let said = String::from_utf8_lossy(&compiling.stderr).into_owned();
    assert!(compiling.status.success(), "{said}");
    let ran = Command::new(&program)
        .arg(&bundle)
        .env("HEG_CACHE_DIR", workbench.path("cache"))
        .output();
    let ran = ran.unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    assert_eq!(said, "");
    insta::assert_snapshot!(String::from_utf8(ran.stdout).unwrap());
}
