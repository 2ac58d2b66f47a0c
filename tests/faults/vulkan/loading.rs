//! A driver that fails while kernels are made ready: the CPU runs what the GPU does not, and says why.

use std::time::Duration;

use heg_runtime::Loaded;
use heg_runtime::exec::{Executor, ExecutorOptions, summary};
use heg_sched::Logits;
use heg_spec::shipped;
use heg_tests::greedy;
use heg_vk_faults::{Installed, PretendedKind, VkCounts, VkFault, VkPlan};

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

/// Rows of a call that takes more than one tile of any size.
const MANY_ROWS: usize = 67;

#[test]
fn pipelines_are_made_before_launches_need_them() {
    let test = "vulkan::loading::pipelines_are_made_before_launches_need_them";
    layered(test, MINUTES, |layer| {
        // Such a device has a pipeline for each of few rows.
        let wide = VkPlan {
            kind: Some(PretendedKind::Discrete),
            ..VkPlan::default()
        };
        let pipelines = |run: &dyn Fn(&mut Executor)| {
            plan(layer, &wide);
            let loaded = Loaded::open(gpu_bundle()).unwrap();
            let loader = loaded.loader(&shipped::soc(GPU_ALONE).unwrap()).unwrap();
            let options = ExecutorOptions {
                chunk_tokens: MANY_ROWS,
                batch: 2,
                ..ExecutorOptions::default()
            };
            let mut executor = Executor::new(loader, options).unwrap();
            executor.wait_ready().unwrap();
            while executor.rest().unwrap() {}
            run(&mut executor);
            drop(executor);
            Seen::at_end(layer).ends[0].pipelines
        };
        let [rested, ran] = [pipelines(&|_| {}), pipelines(&run_every_size)];
        println!("{rested} pipelines when rested, {ran} behind calls of every size");
        assert_eq!(ran, rested);
    });
}

/// Runs prompts of few rows, of those around a tile's and around two, and steps of one and two sequences.
fn run_every_size(executor: &mut Executor) {
    let mut sequences = [0; 2].map(|_| executor.sequence().unwrap());
    for rows in (1..=10).chain(31..=34).chain(63..=MANY_ROWS) {
        let [sequence, _] = &mut sequences;
        sequence.truncate(0);
        let prompt = vec![3; rows];
        executor
            .prefill(sequence, &prompt, Logits::LastRows)
            .unwrap();
    }
    for count in 1..=2 {
        let mut batch: Vec<_> = sequences.iter_mut().take(count).collect();
        executor.decode(&mut batch, &vec![4; count]).unwrap();
    }
}
