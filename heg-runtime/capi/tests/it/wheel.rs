//! The Python wheel, made of this build's library and installed by pip without a network.

use std::path::Path;
use std::process::Command;

use heg_tests::{Workbench, fixture, skipped};
use xtask::dist::{Compression, Shipment, write_wheel};

use crate::c_program::library;

/// Runs a program; its output, or what it said on standard error.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn a_python_program_asks_the_installed_wheel() {
    let pip = said(Command::new("python3").args(["-m", "pip", "--version"]));
    if let Err(why) = pip {
        skipped(&format!("the Python wheel: no python3 with pip: {why}"));
        return;
    }
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "agent", |_| {});
    let (bundle, _) = compiled.unwrap();
    let release = Shipment {
        version: "0.0.1".to_owned(),
        epoch: 0,
    };
    let libheg = std::fs::read(library()).unwrap();
    let folder = workbench.folder();
    let wheel = write_wheel(
        folder,
        &release,
        &libheg,
        "linux_x86_64",
        Compression::Quick,
    )
    .unwrap();
    let python = workbench.path("venv/bin/python");
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--without-pip"]);
    said(create.arg(workbench.path("venv"))).unwrap();
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "--python"]).arg(&python);
    install.args(["install", "--no-index", "--no-deps", "--no-compile"]);
    said(install.arg("--disable-pip-version-check").arg(wheel)).unwrap();
    let mut ask = Command::new(python);
    ask.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/wheel.py"))
        .arg(&bundle)
        .env("HEG_CACHE_DIR", workbench.path("cache"));
    insta::assert_snapshot!(said(&mut ask).unwrap());
}
