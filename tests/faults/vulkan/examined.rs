//! A driver that crashes or hangs, in the process that examines it: the one that asked goes on without the device, and
//! remembers it for this version of the driver.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use heg_artifacts::Bundle;
use heg_files::OwnFolder;
use heg_runtime::exec::{
    Executor, ExecutorOptions, GpuExaminer, GpuProcess, Loader, clear_quarantine, summary,
};
use heg_spec::shipped;
use heg_tests::greedy;
use heg_vk_faults::{Installed, VkFault, VkPlan};

use super::{Seen, layered, plan, plan_one};
use crate::world::{ANSWER_TOKENS, GPU_ALONE, gpu_bundle, references};

const MINUTES: Duration = Duration::from_secs(240);

/// An examiner with a cache folder.
pub(super) fn examiner(cache: &Path, patience: Duration) -> GpuExaminer {
    GpuExaminer {
        process: GpuProcess {
            program: env!("CARGO_BIN_EXE_tests_gpu_examiner").into(),
            arguments: Vec::new(),
            patience,
        },
        bundle: gpu_bundle().to_owned(),
        cache: OwnFolder::create(cache).unwrap(),
    }
}

pub(super) fn open(examiner: &GpuExaminer, soc: &str) -> Loader {
    let bundle = Arc::new(Bundle::open(gpu_bundle()).unwrap());
    Loader::open_examined(bundle, shipped::soc(soc).unwrap(), examiner).unwrap()
}

/// Has a model answer a prompt on a loader's devices. Returns what was said of rungs that were passed over.
fn answers(loader: Loader, what: &str) -> Vec<String> {
    let mut executor = Executor::new(loader, ExecutorOptions::default()).unwrap();
    let reference = &references(GPU_ALONE)[3];
    let mut sequence = executor.sequence().unwrap();
    let count = ANSWER_TOKENS as usize;
    let answer = greedy(&mut executor, &mut sequence, &reference.prompt, count).unwrap();
    assert_eq!(answer, reference.answer, "{what}");
    summary(executor.descents().get())
}

#[test]
fn a_driver_that_crashes_is_passed_over_until_it_is_another_one() {
    let test = "vulkan::examined::a_driver_that_crashes_is_passed_over_until_it_is_another_one";
    layered(test, MINUTES, |layer| {
        let folder = tempfile::tempdir().unwrap();
        let examiner = examiner(folder.path(), MINUTES);
        let said = |what: &str| answers(open(&examiner, GPU_ALONE), what);
        // Behind the pipelines of the probe.
        plan_one(layer, VkFault::CrashAtPipeline, 6, 1);
        let crashed = said("crash");
        assert_eq!(crashed.len(), 1, "{crashed:?}");
        let expected = "its driver ended the process that examined it (signal 6)";
        assert!(crashed[0].contains(expected), "{crashed:?}");
        let seen = Seen::of(layer);
        assert_eq!(seen.faults, ["crash-at-pipeline"; 2]);
        // No device was made in this process: it would have died.
        assert_eq!((seen.devices, seen.ends.len()), (2, 0));
        plan(layer, &VkPlan::default());
        assert_eq!(said("remembered"), crashed);
        assert_eq!(Seen::of(layer).devices, 0);
        let newer = VkPlan {
            driver_version: Some(7),
            ..VkPlan::default()
        };
        plan(layer, &newer);
        assert_eq!(said("another version"), [""; 0]);
        let seen = Seen::of(layer);
        assert_eq!(seen.devices, 2);
        seen.left_nothing("another version");
        plan(layer, &newer);
        assert_eq!(said("the other version again"), [""; 0]);
        assert_eq!(Seen::of(layer).devices, 1);
        plan(layer, &VkPlan::default());
        assert_eq!(clear_quarantine(&open(&examiner, GPU_ALONE)).unwrap(), 1);
        assert_eq!(said("cleared"), [""; 0]);
    });
}

#[test]
fn pages_that_crash_a_driver_are_copied() {
    let test = "vulkan::examined::pages_that_crash_a_driver_are_copied";
    layered(test, MINUTES, |layer| {
        for after in [0, 1] {
            let folder = tempfile::tempdir().unwrap();
            let examiner = examiner(folder.path(), MINUTES);
            plan_one(layer, VkFault::CrashAtImport, after, 1);
            assert_eq!(answers(open(&examiner, GPU_ALONE), "import"), [""; 0]);
            let seen = Seen::of(layer);
            assert_eq!(seen.faults, ["crash-at-import"]);
            // The one that crashed, the one that copied, and the one of this process.
            assert_eq!((seen.devices, seen.ends.len()), (3, 2));
            assert!(seen.ends.iter().all(|end| end.imported_bytes == 0));
        }
    });
}

#[test]
fn a_driver_that_hangs_is_ended() {
    let test = "vulkan::examined::a_driver_that_hangs_is_ended";
    layered(test, MINUTES, |layer: &Installed| {
        let folder = tempfile::tempdir().unwrap();
        let examiner = examiner(folder.path(), Duration::from_secs(2));
        plan_one(layer, VkFault::HangAtPipeline, 6, 1);
        let said = answers(open(&examiner, GPU_ALONE), "hang");
        assert!(
            said[0].contains("its driver did not end within 2 s"),
            "{said:?}"
        );
    });
}

#[test]
fn an_error_that_may_pass_is_not_remembered() {
    let test = "vulkan::examined::an_error_that_may_pass_is_not_remembered";
    layered(test, MINUTES, |layer| {
        let folder = tempfile::tempdir().unwrap();
        let examiner = examiner(folder.path(), MINUTES);
        plan_one(layer, VkFault::NoMemory, 0, u64::MAX);
        let said = answers(open(&examiner, GPU_ALONE), "no memory");
        assert!(said[0].contains("allocation of memory"), "{said:?}");
        plan(layer, &VkPlan::default());
        assert_eq!(answers(open(&examiner, GPU_ALONE), "later"), [""; 0]);
    });
}
