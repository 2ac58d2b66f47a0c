//! Faults of a Vulkan driver below the engine, injected by a layer of our own: each scene is a process whose devices have the
//! layer. A request goes on elsewhere with the same tokens or ends with its status, nothing hangs, and what a device was
//! given is given back.

mod examined;
mod figures;
mod lanes;
mod loading;
mod pairs;
mod worlds;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use heg_gpu::{GpuDevice, GpuOptions};
use heg_tests::skipped;
use heg_vk_faults::{Installed, VkCounts, VkEntry, VkFault, VkPlan};

use crate::scene::play;

/// Folder of the layer, which a test gives to the process that it starts.
const FOLDER: &str = "HEG_TEST_VK_FOLDER";

/// Returns whether there is a device; notes the reason if there is none.
pub(crate) fn gpu_or_skip(test: &str) -> bool {
    let Err(error) = GpuDevice::find(&GpuOptions::from_environment()) else {
        return true;
    };
    let required = std::env::var_os("HEG_REQUIRE_GPU").is_some();
    assert!(!required, "{test}: {error}");
    skipped(&format!("{test}: {error}"));
    false
}

/// Runs a scene in a process whose devices have the layer, in a bounded time. `test` is the path of the test that calls
/// this, which runs the scene there.
fn layered(test: &str, patience: Duration, scene: impl FnOnce(&Installed)) {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return scene(&Installed::new(Path::new(&folder)).unwrap());
    }
    if !gpu_or_skip(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let layer = Installed::new(folder.path()).unwrap();
    let enter = |process: &mut Command| {
        process.env(FOLDER, folder.path()).envs(layer.environment());
    };
    play(test, folder.path(), patience, enter);
}

/// The layer's record since it was cleared.
#[derive(Debug, Default)]
struct Seen {
    devices: usize,
    faults: Vec<String>,
    ends: Vec<VkCounts>,
}

impl Seen {
    fn of(layer: &Installed) -> Self {
        let mut seen = Self::default();
        for entry in layer.record().unwrap() {
            match entry {
                VkEntry::Instance => {}
                VkEntry::Device => seen.devices += 1,
                VkEntry::Fault { name, .. } => seen.faults.push(name),
                VkEntry::End(counts) => seen.ends.push(counts),
            }
        }
        seen
    }

    /// The record once all devices have ended, or their time has passed. One that never answers is not waited for.
    fn at_end(layer: &Installed) -> Self {
        let begin = Instant::now();
        loop {
            let seen = Self::of(layer);
            let is_silent = seen.faults.iter().any(|fault| fault == "never-signalled");
            let is_over = seen.ends.len() >= seen.devices || is_silent;
            if is_over || begin.elapsed() > DEVICE_END {
                return seen;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks that all devices ended, and gave back what they had.
    fn left_nothing(&self, what: &str) {
        assert_eq!(self.ends.len(), self.devices, "{what}: {self:?}");
        let left: Vec<_> = self.ends.iter().filter(|end| end.left() > 0).collect();
        assert!(left.is_empty(), "{what}: {left:?}");
    }
}

/// The time in which a lost device is given back, at most: its lane's thread does it, beside the end of the engine.
const DEVICE_END: Duration = Duration::from_secs(10);

/// Plans for devices that are made from now on, and forgets what happened before.
fn plan(layer: &Installed, plan: &VkPlan) {
    layer.plan(plan).unwrap();
    layer.clear_record().unwrap();
}

fn plan_one(layer: &Installed, fault: VkFault, after: u64, times: u64) {
    plan(layer, &VkPlan::of(fault, after, times));
}
