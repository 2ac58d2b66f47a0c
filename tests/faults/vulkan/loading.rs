//! A driver that fails while kernels are made ready: the CPU runs what the GPU does not, and says why.

use std::time::Duration;

use heg_runtime::Loaded;
use heg_runtime::exec::{Executor, ExecutorOptions, summary};
use heg_spec::shipped;
use heg_tests::greedy;
use heg_vk_faults::{Installed, VkCounts, VkFault, VkPlan};

use super::{Seen, layered, plan, plan_one};
use crate::world::{ANSWER_TOKENS, GPU_ALONE, gpu_bundle, references};

const MINUTES: Duration = Duration::from_secs(240);

/// Loads the model on the GPU, and has it answer a prompt. Returns what was said of rungs that were passed over.
fn answers(what: &str) -> Vec<String> {
    let loaded = Loaded::open(gpu_bundle()).unwrap();
    let loader = loaded.loader(&shipped::soc(GPU_ALONE).unwrap()).unwrap();
    let options = ExecutorOptions {
        chunk_tokens: 32,
        ..ExecutorOptions::default()
    };
    let mut executor = Executor::new(loader, options).unwrap();
    executor.wait_ready().unwrap();
    let reference = &references(GPU_ALONE)[1];
    let mut sequence = executor.sequence().unwrap();
    let count = ANSWER_TOKENS as usize;
    let answer = greedy(&mut executor, &mut sequence, &reference.prompt, count).unwrap();
    assert_eq!(answer, reference.answer, "{what}");
    summary(executor.descents().get())
}

/// The work of a device while kernels are made ready.
fn loading(layer: &Installed) -> VkCounts {
    plan(layer, &VkPlan::default());
    let loaded = Loaded::open(gpu_bundle()).unwrap();
    let loader = loaded.loader(&shipped::soc(GPU_ALONE).unwrap()).unwrap();
    let mut executor = Executor::new(loader, ExecutorOptions::default()).unwrap();
    executor.wait_ready().unwrap();
    assert_eq!(summary(executor.descents().get()), [""; 0]);
    drop(executor);
    let seen = Seen::at_end(layer);
    seen.left_nothing("without faults");
    println!("loading: {:?}", seen.ends[0]);
    seen.ends[0]
}

/// Occasions before which a fault happens: the first, and some of the rest; with `HEG_FULL=1` all.
fn places(count: u64) -> impl Iterator<Item = u64> {
    let few = if std::env::var_os("HEG_FULL").is_some() {
        count
    } else {
        2
    };
    let step = (count / few).max(1);
    (0..count).filter(move |at| *at < 1 || at % step == step - 1)
}

#[test]
fn whatever_fails_while_kernels_are_made_ready_the_cpu_answers() {
    let test = "vulkan::loading::whatever_fails_while_kernels_are_made_ready_the_cpu_answers";
    layered(test, MINUTES, |layer| {
        let counts = loading(layer);
        for (fault, count) in [
            (VkFault::LostAtSubmission, counts.submissions),
            (VkFault::LostAtWait, counts.waits),
            (VkFault::NoMemory, counts.allocations),
            (VkFault::NoPipeline, counts.pipelines),
        ] {
            for after in places(count) {
                let what = format!("{fault:?} after {after} of {count}");
                plan_one(layer, fault, after, 1);
                let said = answers(&what);
                println!("{what}: {said:?}");
                let seen = Seen::at_end(layer);
                assert_eq!(seen.faults, [fault.name()], "{what}");
                seen.left_nothing(&what);
            }
        }
    });
}

#[test]
fn answers_that_are_damaged_while_kernels_are_made_ready_are_found_out() {
    let test =
        "vulkan::loading::answers_that_are_damaged_while_kernels_are_made_ready_are_found_out";
    layered(test, MINUTES, |layer| {
        let counts = loading(layer);
        // The probe's own numbers: such a device is close.
        plan_one(layer, VkFault::WrongAnswer, 0, u64::MAX);
        let said = answers("the probe");
        assert!(
            said[0].contains("does not compute as CPU programs do"),
            "{said:?}"
        );
        Seen::at_end(layer).left_nothing("the probe");
        // Each known answer, behind the probe and the import.
        plan_one(layer, VkFault::WrongAnswer, 4, u64::MAX);
        let said = answers("known answers");
        println!("{said:?}");
        assert!(!said.is_empty());
        Seen::at_end(layer).left_nothing("known answers");
        // One of them: bytes were damaged, and the kernel is made again.
        plan_one(layer, VkFault::WrongAnswer, counts.submissions - 2, 1);
        let said = answers("one known answer");
        println!("{said:?}");
        assert_eq!(Seen::at_end(layer).faults, ["wrong-answer"]);
        assert_eq!(said.len(), 1, "{said:?}");
        Seen::at_end(layer).left_nothing("one known answer");
    });
}
