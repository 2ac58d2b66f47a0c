//! Faults of an NPU's driver below the engine, over OpenVINO's own plugin and an NPU in software (`tests/soft-npu`). Each
//! scene is a process that lives through many worlds. Skipped by name without OpenVINO or without the NPU's compiler.

mod agreement;
mod alike;
mod asked;
mod pairs;
mod sweep;
mod trees;
mod whole;
mod worlds;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use heg_runtime::engine::Lanes;
use heg_runtime::exec::Loader;
use heg_sched::one_request_policy;
use heg_spec::{Policy, WeightForm};
use heg_tests::roles::{loader, soc};
use heg_tests::soft_npu::{DeviceLog, InSoftNpu, NPU_SOCS, NpuSoc, SoftNpu, compile_with_blobs};
use heg_tests::{fixture, four_bits};

use crate::scene::play;
use crate::world::policy;

/// Folder of the world, which a test gives to the process that it starts.
const FOLDER: &str = "HEG_TEST_NPU_FOLDER";

/// The scene that the process plays, in the same way.
const SCENE: &str = "HEG_TEST_NPU_SCENE";

/// An NPU, and the weights of the model that runs on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scene {
    npu: NpuSoc,
    bits: WeightBits,
}

/// The weights of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WeightBits {
    Eight,
    Four,
}

impl Scene {
    /// All of them: each NPU with both kinds of weights.
    fn all() -> impl Iterator<Item = Self> {
        let weights = [WeightBits::Eight, WeightBits::Four];
        weights
            .into_iter()
            .flat_map(|bits| NPU_SOCS.map(|npu| Self { npu, bits }))
    }

    /// Plays it with a test, in a world of its own.
    #[track_caller]
    fn play(self, test: &str, patience: Duration, variables: &[(&str, String)]) {
        let world = SoftNpu::new();
        let platform = self.npu.platform.to_string();
        let number = Self::all().position(|scene| scene == self).unwrap();
        play(test, world.folder(), patience, |command| {
            world.enter(command, self.bits.bundle(), &[("PLATFORM", &platform)]);
            command.env(FOLDER, world.folder());
            command.env(SCENE, number.to_string());
            for (name, value) in variables {
                command.env(name, value);
            }
        });
    }
}

/// The scene of this process and its world, if a test started it.
fn inside() -> Option<(InSoftNpu, Scene)> {
    let folder = std::env::var_os(FOLDER)?;
    let number: usize = std::env::var(SCENE).unwrap().parse().unwrap();
    let scene = Scene::all().nth(number).unwrap();
    Some((InSoftNpu::new(Path::new(&folder)), scene))
}

impl WeightBits {
    /// A small random model, with blobs for all platforms: a world with it takes a moment.
    fn bundle(self) -> &'static Path {
        static EIGHT: OnceLock<PathBuf> = OnceLock::new();
        static FOUR: OnceLock<PathBuf> = OnceLock::new();
        match self {
            Self::Eight => EIGHT.get_or_init(|| small("worlds-w8a16", WeightForm::W8A16)),
            Self::Four => FOUR.get_or_init(|| small("worlds-w4a16", four_bits(false))),
        }
    }
}

fn small(name: &str, weights: WeightForm) -> PathBuf {
    let platforms = NPU_SOCS.map(|npu| npu.platform);
    compiled(&fixture("golden/llama"), name, weights, &platforms)
}

/// Compiles a model with blobs. Bundles are in Cargo's folder, where a second run finds the blobs.
fn compiled(model: &Path, name: &str, weights: WeightForm, platforms: &[u32]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soft-npu");
    std::fs::create_dir_all(&folder).unwrap();
    compile_with_blobs(&folder, (model, name), weights, platforms)
}

/// An NPU beside a CPU that plays the iGPU and works on the same f16 rows, and the CPU below them; or without the iGPU.
///
/// Which of them computes which part of a prompt depends on the load of the machine that tests run on. So the CPU's plugin
/// rounds no activations to 8 bits, as it does by default: that moves logits by as much as answers are clear (`asked`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Machine {
    TwoLanes,
    Alone,
}

impl Machine {
    fn loader(self, bundle: &Path) -> Loader {
        let npu = "(class: Npu, openvino: \"NPU\"),";
        let cpu = "openvino: \"CPU\", \
                   properties: {\"INFERENCE_PRECISION_HINT\": \"f32\", \
                   \"DYNAMIC_QUANTIZATION_GROUP_SIZE\": \"0\", \"NUM_STREAMS\": \"1\"}),";
        let igpu = format!("(class: Igpu, {cpu}");
        let last = format!("(class: Cpu, programs: (activations: F32), {cpu}");
        let devices = match self {
            Self::TwoLanes => format!("{npu}{igpu}{last}"),
            Self::Alone => format!("{npu}{last}"),
        };
        loader(bundle, &soc(&devices))
    }
}

/// A policy, or that of a command that answers one prompt.
fn policy_of(name: Option<&str>, loader: &Loader) -> Policy {
    match name {
        Some(name) => policy(name),
        None => one_request_policy(loader.lanes(), 32).unwrap(),
    }
}

/// The lanes under such a policy: a command that answers one prompt has all devices in one.
fn lanes_of(name: Option<&str>) -> Lanes {
    match name {
        Some(_) => Lanes::default(),
        None => Lanes::Single,
    }
}

/// The log once the device was given back, or its time is over: a lost lane's thread does that, beside the end of the
/// engine.
fn ended(inside: &InSoftNpu, patience: Duration) -> DeviceLog {
    let begin = Instant::now();
    loop {
        let log = inside.log();
        if log.left().is_some() || begin.elapsed() >= patience {
            return log;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
