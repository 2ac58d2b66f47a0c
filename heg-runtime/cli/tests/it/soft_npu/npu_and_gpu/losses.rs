//! An NPU or a GPU that is missing, or lost in an answer: the other goes on, and what is left says why.

use heg_tests::soft_npu::{SoftNpu, soft_npu_or_skip};
use heg_vk_faults::{Installed, VkEntry, VkFault, VkPlan};

use super::super::command;
use super::{GPU, answer, bundle, expected, heg_in, npu_and_gpu_or_skip};

const SOC: &str = "core-ultra-7-258v";
const PROMPT: &str = "Will it rain in Oslo tomorrow?";

/// Without an NPU rows are those of CPU programs, so that the GPU runs all kernels, and is the first to do so.
#[test]
fn without_its_npu_the_gpu_runs_every_kernel() {
    if !npu_and_gpu_or_skip("a GPU without the NPU beside it") {
        return;
    }
    let world = SoftNpu::new().beside_gpu(GPU);
    let arguments = answer(bundle(), SOC, PROMPT);
    let settings = [("PLATFORM", "4000"), ("WITHOUT", "device")];
    let ran = heg_in(&world, bundle(), &arguments, &settings);
    let on_cpu = heg_in(&world, bundle(), &answer(bundle(), "host-cpu", PROMPT), &[]);
    assert_eq!(ran.tokens(), on_cpu.tokens());
    let report = ran.json();
    let descents = report["descents"].as_array().unwrap().iter();
    let steps: Vec<_> = descents
        .map(|it| [&it["from"]["device"], &it["to"]["device"]])
        .collect();
    // Attention prefers the iGPU anyway.
    let step = [&serde_json::json!("NPU"), &serde_json::json!("GPU")];
    assert_eq!(steps, vec![step; steps.len()], "{report}");
    assert!(!steps.is_empty() && ran.log.count("run") == 0);
}

/// A GPU in software takes the iGPU's role only where it is asked for.
#[test]
fn a_gpu_in_software_is_passed_over_unless_it_is_named() {
    if !soft_npu_or_skip("a GPU in software that nobody named") {
        return;
    }
    let world = SoftNpu::new();
    let ran = heg_in(
        &world,
        bundle(),
        &answer(bundle(), SOC, PROMPT),
        &[("PLATFORM", "4000")],
    );
    assert_eq!(ran.tokens(), expected(bundle(), PROMPT));
    assert!(
        ran.error
            .contains("note: mha dynamic: GPU program -> NPU blob"),
        "{}",
        ran.error
    );
}

/// A driver that loses its device in the middle of an answer.
#[test]
fn a_gpu_that_is_lost_in_an_answer_leaves_the_npu_and_the_cpu() {
    if !npu_and_gpu_or_skip("a GPU that is lost beside a software NPU") {
        return;
    }
    let world = SoftNpu::new().beside_gpu(GPU);
    let layer = world.folder().join("layer");
    std::fs::create_dir(&layer).unwrap();
    let layer = Installed::new(&layer).unwrap();
    let run = || {
        let mut command = command(&world, bundle(), &[("PLATFORM", "4000")]);
        let command = command
            .args(answer(bundle(), SOC, PROMPT))
            .envs(layer.environment());
        let ran = command.output().unwrap();
        let error = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(0), "{error}");
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        (report["token_ids"].clone(), error)
    };
    let wanted = expected(bundle(), PROMPT);
    layer.plan(&VkPlan::default()).unwrap();
    // The first run examines the device, in another process.
    assert_eq!(run().0, wanted);
    layer.clear_record().unwrap();
    assert_eq!(run().0, wanted);
    let ends: Vec<u64> = layer
        .record()
        .unwrap()
        .iter()
        .filter_map(|entry| match entry {
            VkEntry::End(counts) => Some(counts.submissions),
            _ => None,
        })
        .collect();
    let [submissions] = ends[..] else {
        panic!("one device: {ends:?}");
    };
    // In its last token but some.
    let plan = VkPlan::of(VkFault::LostAtSubmission, submissions - 10, 1);
    layer.plan(&plan).unwrap();
    let (tokens, error) = run();
    assert_eq!(tokens, wanted);
    assert!(error.contains(" was lost"), "{error}");
}
