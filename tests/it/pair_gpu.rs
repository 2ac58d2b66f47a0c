//! A pair of a CPU thread and a GPU that share every product over the same rows: whatever is cut, and how, answers are those
//! of one device, bit for bit. The device is the one that `HEG_VK_DRIVER` names, or the first that is there.

use std::process::Command;

use heg_runtime::exec::{Executor, PairWay};
use heg_sched::{Class, Finish, Logits, chunks};
use heg_spec::policy::PairLevel;
use heg_spec::{CutProduct, DeviceClass, Side, Soc, WeightForm, shipped};
use heg_tests::{Workbench, executor, greedy};

use crate::gpu_lanes::gpu_or_skip;
use crate::pair::{
    ANSWER_TOKENS, OPTIONS, OnlyOne, answer, cuts, engine, four_bits, logits, pair_of, prompt,
    request, tiny_agent_in,
};

/// The GPU is the first side, or the second.
fn machine(gpu_is: Side) -> Soc {
    let mut soc = shipped::soc("host-pair-gpu").unwrap();
    if gpu_is == Side::Second {
        let gpu = soc.devices[0].gpu.take();
        soc.devices[1].gpu = gpu;
        assert_eq!(soc.devices[1].class, DeviceClass::Igpu);
    }
    soc
}

const PRODUCTS: [CutProduct; 5] = [
    CutProduct::Qkv,
    CutProduct::Out,
    CutProduct::GateUp,
    CutProduct::Down,
    CutProduct::Head,
];

#[test]
fn every_cut_of_every_product_has_the_bits_of_one_device() {
    if !gpu_or_skip("every_cut_of_every_product_has_the_bits_of_one_device") {
        return;
    }
    let machines = [
        (WeightForm::W8A16, Side::First),
        (WeightForm::W8A16, Side::Second),
        (four_bits(false), Side::First),
        (WeightForm::F32, Side::Second),
    ];
    let is_full = std::env::var_os("HEG_FULL").is_some();
    for (number, (form, gpu_is)) in machines.into_iter().enumerate() {
        let workbench = Workbench::new().unwrap();
        let bundle = tiny_agent_in(&workbench, form);
        // A chunk, and one row of the next.
        let prompt = prompt(OPTIONS.chunk_tokens as u32 + 1);
        let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
        let expected = logits(&mut alone, &prompt);
        let (mut both, roles) = pair_of(&machine(gpu_is), &bundle, PairLevel::Tensor);
        for product in PRODUCTS {
            let before = roles.partner_parts();
            // All on the first machine, and every third on the next.
            let (first, step) = if is_full || number == 0 {
                (0, 1)
            } else {
                (number % 3, 3)
            };
            for cut in cuts().into_iter().skip(first).step_by(step) {
                assert!(roles.share_by(Box::new(OnlyOne(Some(product), cut.clone()))));
                let found = logits(&mut both, &prompt);
                assert!(
                    found == expected,
                    "{form:?}, {gpu_is:?}, {product:?}: {cut}"
                );
            }
            assert!(roles.partner_parts() > before, "{gpu_is:?}, {product:?}");
        }
        assert_eq!(roles.lost_side(), None);
    }
}

/// Bits of all logits of two prompts in chunks, and of tokens behind both in batches.
fn batches(executor: &mut Executor, chunk_tokens: usize) -> Vec<u32> {
    batches_between(executor, chunk_tokens, &mut || ())
}

/// The same, with something done before each pass.
fn batches_between(
    executor: &mut Executor,
    chunk_tokens: usize,
    before_pass: &mut dyn FnMut(),
) -> Vec<u32> {
    let mut bits = Vec::new();
    let mut add = |logits: &[f32]| bits.extend(logits.iter().map(|logit| logit.to_bits()));
    let mut sequences = [51, 24].map(|tokens| {
        let (prompt, mut sequence) = (prompt(tokens), executor.sequence().unwrap());
        for range in chunks(prompt.len(), chunk_tokens) {
            before_pass();
            let row = executor.prefill(&mut sequence, &prompt[range], Logits::LastRows);
            add(row.unwrap());
        }
        sequence
    });
    for tokens in [[3, 90], [5, 7]] {
        let [one, other] = &mut sequences;
        before_pass();
        add(executor.decode(&mut [one, other], &tokens).unwrap());
    }
    bits
}

#[test]
fn chunks_and_batches_have_the_bits_of_one_device() {
    if !gpu_or_skip("chunks_and_batches_have_the_bits_of_one_device") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent_in(&workbench, WeightForm::W8A16);
    let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
    let mut paired = [PairLevel::Tensor, PairLevel::Layer].map(|level| {
        let (both, roles) = pair_of(&machine(Side::First), &bundle, level);
        (level, both, roles)
    });
    for chunk_tokens in [7, 20, 32] {
        let expected = batches(&mut alone, chunk_tokens);
        for (level, both, roles) in &mut paired {
            let before = roles.partner_parts();
            let found = batches(both, chunk_tokens);
            assert!(found == expected, "{level:?}, chunks of {chunk_tokens}");
            let is_shared = roles.partner_parts() > before;
            // The solver may find the device too slow for any product, once it has been measured.
            assert!(is_shared || *level == PairLevel::Tensor, "{level:?}");
        }
    }
    assert!(paired.iter().all(|(_, _, roles)| roles.partner_parts() > 0));
}

#[test]
fn passes_of_the_gpu_alone_have_the_bits_of_one_device() {
    if !gpu_or_skip("passes_of_the_gpu_alone_have_the_bits_of_one_device") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let is_full = std::env::var_os("HEG_FULL").is_some();
    // Chunks with a remainder, and whole ones.
    for (form, gpu_is, part) in [
        (WeightForm::W8A16, Side::First, [7]),
        (four_bits(false), Side::Second, [32]),
    ] {
        let bundle = tiny_agent_in(&workbench, form);
        let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
        let (mut both, roles) = pair_of(&machine(gpu_is), &bundle, PairLevel::Tensor);
        let chunks: &[usize] = if is_full { &[7, 32] } else { &part };
        for &chunk_tokens in chunks {
            let expected = batches(&mut alone, chunk_tokens);
            let before = roles.partner_passes();
            roles.keep_to(Some(PairWay::Partner));
            let found = batches(&mut both, chunk_tokens);
            assert!(found == expected, "{form:?}, {gpu_is:?}, {chunk_tokens}");
            let passes = roles.partner_passes() - before;
            assert!(passes > 0, "{form:?}, {gpu_is:?}, {chunk_tokens}");
            // A sequence goes from one way to the other at any pass.
            let mut number = 0;
            let found = batches_between(&mut both, chunk_tokens, &mut || {
                number += 1;
                roles.keep_to(Some(match number % 3 {
                    0 => PairWay::Partner,
                    _ => PairWay::Together,
                }));
            });
            assert!(found == expected, "{form:?}, {gpu_is:?}, {chunk_tokens}");
            let mixed = roles.partner_passes() - before - passes;
            assert!((1..passes).contains(&mixed), "{mixed} of {passes}");
        }
        assert_eq!(roles.lost_side(), None);
    }
}

/// A GPU whose memory is its own shares no product, and copies keys and values. Devices are opened as the environment says,
/// so it has a process of its own.
#[test]
fn passes_of_a_gpu_with_memory_of_its_own_have_the_bits_of_one_device() {
    if !gpu_or_skip("passes_of_a_gpu_with_memory_of_its_own_have_the_bits_of_one_device") {
        return;
    }
    let test = "pair_gpu::passes_of_the_gpu_alone_have_the_bits_of_one_device";
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(["--exact", test]).env("HEG_VK_AS", "discrete");
    let run = run.output().unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
fn prompts_in_any_company_get_the_answers_of_one_device() {
    if !gpu_or_skip("prompts_in_any_company_get_the_answers_of_one_device") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent_in(&workbench, WeightForm::W8A16);
    let mut alone = executor(&bundle, "host-cpu", 256).unwrap();
    let prompts = [1, 33, 135, 300].map(prompt);
    let expected = prompts.each_ref().map(|prompt| {
        let mut sequence = alone.sequence().unwrap();
        greedy(&mut alone, &mut sequence, prompt, ANSWER_TOKENS).unwrap()
    });
    for policy in ["heterollm-tensor", "heterollm-layer"] {
        let engine = engine(&bundle, "host-pair-gpu", policy);
        for (prompt, expected) in prompts.iter().zip(&expected) {
            let found = answer(&engine, Class::Reactive, prompt);
            assert_eq!(found, *expected, "{policy}, {} tokens", prompt.len());
        }
        // Reactive requests take the place of others between kernels.
        let answers: Vec<_> = (0..8)
            .map(|number| {
                let class = match number % 3 {
                    2 => Class::Reactive,
                    _ => Class::Proactive,
                };
                engine.generate(request(class, &prompts[number % prompts.len()]))
            })
            .collect();
        for (number, generation) in answers.into_iter().enumerate() {
            let (tokens, ending) = generation.wait().unwrap();
            assert_eq!(ending.finish, Finish::Complete);
            assert_eq!(tokens, expected[number % prompts.len()], "{policy}");
        }
        let status = engine.status().unwrap();
        let pair = status.pair.unwrap();
        assert_eq!((pair.lost, status.lanes.len()), (None, 1), "{policy}");
        let parts = pair.parts.unwrap();
        assert!(
            parts.count > 0 && parts.median_ns > 0,
            "{policy}: {parts:?}"
        );
    }
}
