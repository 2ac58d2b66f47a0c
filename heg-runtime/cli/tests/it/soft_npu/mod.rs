//! `heg` over OpenVINO's own NPU plugin, on an NPU in software (`tests/soft-npu`): its commands on every SoC with an
//! NPU, and its end after each fault. Skipped by name without OpenVINO or without the NPU's compiler.
//!
//! One process is one world: the plugin has one driver, and its settings are read once.
#![allow(
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod binding;
mod commands;
mod driver;
mod faults;
mod lanes;
mod npu_and_gpu;
mod npu_lent;
mod pair;
mod recording;
mod server;
mod slices;
mod wrong;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use heg_spec::{GroupColumns, WeightForm};
use heg_tests::fixture;
use heg_tests::soft_npu::{DeviceLog, SoftNpu, compile_with_blobs};
use serde_json::Value;

const HEG: &str = env!("CARGO_BIN_EXE_heg");

/// Chosen: what takes some seconds takes no more than this on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(180);

/// The tiny agent in 8 bits, with blobs for all platforms.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| compiled("tiny-w8a16", WeightForm::W8A16, &[3720, 4000, 5010]))
}

/// The tiny agent in 4 bits, with blobs for one platform.
fn four_bit_bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let form = WeightForm::W4A16 {
            group: GroupColumns::SMALLEST,
            symmetric: false,
        };
        compiled("tiny-w4a16", form, &[4000])
    })
}

fn compiled(name: &str, form: WeightForm, platforms: &[u32]) -> PathBuf {
    let model = fixture("tiny-agent");
    compile_with_blobs(&folder(), (&model, name), form, platforms)
}

/// The folder of bundles, in Cargo's, since nothing removes the files of a static.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soft-npu");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The end of `heg`, and its calls of the device.
struct Ran {
    status: Option<i32>,
    out: String,
    error: String,
    log: DeviceLog,
}

impl Ran {
    /// Its output as JSON; it has to have ended well, with nothing left on the device.
    #[track_caller]
    fn json(&self) -> Value {
        self.assert_well();
        serde_json::from_str(&self.out).unwrap()
    }

    #[track_caller]
    fn assert_well(&self) {
        assert_eq!(self.status, Some(0), "{}{}", self.out, self.error);
        self.assert_nothing_left();
    }

    /// Nothing is left on the device, if there was one.
    #[track_caller]
    fn assert_nothing_left(&self) {
        let left = self.log.left().unwrap_or_default();
        assert_eq!(left, [0; 6], "own, imported, graphs, queues, lists, fences");
    }

    /// The tokens of `heg run --json`.
    #[track_caller]
    fn tokens(&self) -> Value {
        self.json()["token_ids"].clone()
    }
}

/// Runs `heg` to its end with a bundle, in a world of its own.
fn heg(bundle: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Ran {
    heg_in(&SoftNpu::new(), bundle, arguments, settings)
}

/// The same in a world that was there before.
fn heg_in(world: &SoftNpu, bundle: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Ran {
    let outputs = ["out", "error"].map(|name| world.folder().join(name));
    let mut command = command(world, bundle, settings);
    command.args(arguments);
    command
        .stdout(File::create(&outputs[0]).unwrap())
        .stderr(File::create(&outputs[1]).unwrap());
    let status = end_of(&mut command.spawn().unwrap());
    let [out, error] = outputs.map(|path| std::fs::read_to_string(path).unwrap());
    Ran {
        status: status.code(),
        out,
        error,
        log: world.log(),
    }
}

fn command(world: &SoftNpu, bundle: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(HEG);
    command
        .env("HEG_CACHE_DIR", world.folder().join("cache"))
        .env("HEG_STORE", world.folder().join("store"));
    world.enter(&mut command, bundle, settings);
    command
}

/// Waits for a process; one that takes too long is killed, and fails the test.
#[track_caller]
fn end_of(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("`heg` did not end within {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Arguments of a short answer to a prompt.
fn answer<'a>(bundle: &'a Path, soc: &'a str, prompt: &'a str) -> [&'a str; 9] {
    let bundle = bundle.to_str().unwrap();
    [
        "run",
        bundle,
        "--soc",
        soc,
        "--prompt",
        prompt,
        "--max-tokens",
        "12",
        "--json",
    ]
}

/// The tokens that a CPU gives in f32.
fn expected(bundle: &Path, prompt: &str) -> Value {
    heg(bundle, &answer(bundle, "host-cpu-f32", prompt), &[]).tokens()
}
