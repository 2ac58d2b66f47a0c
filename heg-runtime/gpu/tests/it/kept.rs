//! Pipelines that are kept between processes.

use std::fs;
use std::path::Path;
use std::process::Command;

use heg_files::OwnFolder;
use heg_gpu::{GpuDevice, KeptPipelines};

use crate::device::device_or_skip;

/// Folder that a test gives to the process that it starts.
const FOLDER: &str = "HEG_TEST_KEPT_PIPELINES";

fn keep(device: &GpuDevice, folder: &Path) -> KeptPipelines {
    let folder = OwnFolder::create(folder).unwrap();
    device.keep_pipelines(&folder).unwrap()
}

/// The only file in the folder.
fn file(folder: &Path) -> std::path::PathBuf {
    let files: Vec<_> = fs::read_dir(folder.join("pipelines")).unwrap().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].as_ref().unwrap().path()
}

/// Runs in another process: finds kept pipelines in the folder, and keeps its own there.
fn another_process(folder: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kept::in_another_process", "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let mut lines = said.lines();
    let line = lines.find_map(|line| line.split_once("found: "));
    line.unwrap().1.to_owned()
}

#[test]
fn in_another_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let device = device_or_skip("in_another_process").unwrap();
    println!("found: {:?}", keep(&device, Path::new(&folder)));
    assert_eq!(device.complaints(), [""; 0]);
}

#[test]
fn a_later_process_takes_what_was_kept_and_ignores_what_is_damaged() {
    let Some(device) = device_or_skip("a_later_process_takes_what_was_kept") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(keep(&device, folder.path()), KeptPipelines::Nothing);
    assert!(device.pipeline_count() > 0);
    assert_eq!(device.complaints(), [""; 0]);
    drop(device);
    let whole = fs::read(file(folder.path())).unwrap();
    // A hash, and at least the driver's header.
    assert!(whole.len() >= 64, "{} bytes", whole.len());
    let taken = another_process(folder.path());
    assert!(taken.starts_with("Taken"), "{taken}");
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let mut many = whole.clone();
    many.resize((32 << 20) + 1, 0);
    for (damaged, reason) in [
        (flipped(0), "its bytes do not have its hash"),
        (flipped(40), "its bytes do not have its hash"),
        (
            whole[..whole.len() - 1].to_vec(),
            "its bytes do not have its hash",
        ),
        (
            whole[..10].to_vec(),
            "it has 10 bytes, expected at least 32",
        ),
        (Vec::new(), "it has 0 bytes, expected at least 32"),
        (many, "bytes"),
    ] {
        let path = file(folder.path());
        fs::write(&path, damaged).unwrap();
        let found = another_process(folder.path());
        assert!(
            found.starts_with("Ignored") && found.contains(reason),
            "{found}"
        );
        // It is whole again.
        let taken = another_process(folder.path());
        assert!(taken.starts_with("Taken"), "{taken}");
    }
}
