//! Faults of an NPU's driver below the engine, over OpenVINO's own plugin and an NPU in software (`tests/soft-npu`). Each
//! scene is a process that lives through many worlds. Skipped by name without OpenVINO or without the NPU's compiler.

mod asked;
mod worlds;

use std::path::{Path, PathBuf};
use std::time::Duration;

use heg_spec::WeightForm;
use heg_tests::fixture;
use heg_tests::soft_npu::{InSoftNpu, NPU_SOCS, NpuSoc, SoftNpu, compile_with_blobs};

use crate::scene::play;

/// Folder of the world, which a test gives to the process that it starts.
const FOLDER: &str = "HEG_TEST_NPU_FOLDER";

/// Index of the NPU that the world has, in the same way.
const NPU: &str = "HEG_TEST_NPU";

/// The world of this process and its NPU, if a test started it.
fn inside() -> Option<(InSoftNpu, NpuSoc)> {
    let folder = std::env::var_os(FOLDER)?;
    let npu: usize = std::env::var(NPU).unwrap().parse().unwrap();
    Some((InSoftNpu::new(Path::new(&folder)), NPU_SOCS[npu]))
}

/// Runs the scene of a test in a world with one of the NPUs.
#[track_caller]
fn over(test: &str, npu: usize, patience: Duration, variables: &[(&str, String)]) {
    let world = SoftNpu::new();
    let platform = NPU_SOCS[npu].platform.to_string();
    play(test, world.folder(), patience, |command| {
        world.enter(command, bundle(), &[("PLATFORM", &platform)]);
        command
            .env(FOLDER, world.folder())
            .env(NPU, npu.to_string());
        for (name, value) in variables {
            command.env(name, value);
        }
    });
}

/// A small random model in 8 bits, with blobs for all platforms: a world with it takes a moment.
fn bundle() -> &'static Path {
    static BUNDLE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BUNDLE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soft-npu");
        std::fs::create_dir_all(&folder).unwrap();
        let model = fixture("golden/llama");
        let named = (model.as_path(), "worlds-llama");
        compile_with_blobs(
            &folder,
            named,
            WeightForm::W8A16,
            &NPU_SOCS.map(|npu| npu.platform),
        )
    })
}
