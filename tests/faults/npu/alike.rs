//! Trees of a trained model on every device: NPU forms, GPU programs and CPU programs give the tokens of a CPU that drafts
//! nothing, and take as many of them at once.

use heg_runtime::engine::DraftCounts;
use heg_runtime::exec::{Descent, Executor, Loader, Reason};
use heg_sched::Class;
use heg_tests::roles::{loader, soc};
use heg_tests::soft_npu::soft_npu_or_skip;
use heg_tests::{executor, greedy};

use super::agreement::{Trained, over};
use super::trees::{Verifications, answer, engine, request};
use super::{FOLDER, Machine};
use crate::vulkan::gpu_or_skip;
use crate::world::{ANSWER_TOKENS, Reference};

const TEST: &str = "npu::alike::smollm2_verifies_trees_alike_on_every_device";

/// Prompts that are asked. Chosen: each takes some ten seconds on all devices together.
const PROMPTS: usize = 1;

#[test]
fn smollm2_verifies_trees_alike_on_every_device() {
    let is_inside = std::env::var_os(FOLDER).is_some();
    if !is_inside && !soft_npu_or_skip(TEST) {
        return;
    }
    let Some(bundle) = Trained::SmolLm.bundle() else {
        return;
    };
    if !is_inside {
        return over(TEST, &[bundle], 0);
    }
    let programs = |gpu: &str, activations: &str| {
        let class = if gpu.is_empty() { "Cpu" } else { "Igpu" };
        let programs = format!("programs: (activations: {activations})");
        soc(&format!(
            "(class: {class}, {gpu} {programs}, openvino: \"CPU\"),"
        ))
    };
    let over = |soc| loader(&bundle, &soc);
    let in_f32 = answers(executor(&bundle, "host-cpu-f32", 32).unwrap());
    let in_8_bits = answers(executor(&bundle, "host-cpu", 32).unwrap());
    let mut found = vec![
        ("CPU, f32", counts(over(programs("", "F32")), &in_f32)),
        ("NPU", counts(Machine::Alone.loader(&bundle), &in_f32)),
        ("CPU, i8", counts(over(programs("", "I8")), &in_8_bits)),
    ];
    if gpu_or_skip(TEST) {
        let gpu = programs("gpu: (),", "I8");
        found.push(("GPU", counts(over(gpu), &in_8_bits)));
    }
    for (device, counts) in &found {
        println!("{device}: {counts:?}");
        assert_eq!(counts, &found[0].1, "{device}");
    }
    // All that is known but the first token, which the prompt gives, in one step.
    let all = found[0].1.iter();
    assert!(
        all.map(|it| it.accepted_tokens)
            .eq([ANSWER_TOKENS - 1; PROMPTS])
    );
}

/// Prompts with the answers of an executor, which drafts nothing.
fn answers(mut executor: Executor) -> Vec<Reference> {
    let prompts = Trained::SmolLm.prompts().into_iter().take(PROMPTS);
    let answered = prompts.map(|prompt| {
        let mut sequence = executor.sequence().unwrap();
        let answer = greedy(
            &mut executor,
            &mut sequence,
            &prompt,
            ANSWER_TOKENS as usize,
        );
        Reference {
            answer: answer.unwrap(),
            prompt,
        }
    });
    answered.collect()
}

/// What became of the drafts of each answer, whose tokens have to be these.
fn counts(loader: Loader, all: &[Reference]) -> Vec<DraftCounts> {
    let engine = engine(loader, None, all.to_vec(), Verifications::default());
    let counts = all.iter().map(|reference| {
        let (tokens, counts) = answer(engine.generate(request(reference, Class::Reactive)));
        assert!(tokens.starts_with(&reference.answer), "{reference:?}");
        counts
    });
    let counts = counts.collect();
    // Contexts beyond the NPU's bucket are the CPU's; nothing else is passed over.
    let is_size = |it: &Descent| matches!(it.reason, Reason::TooSmall { .. });
    assert!(engine.descents().iter().all(is_size));
    counts
}
