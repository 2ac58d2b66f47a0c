//! Keys and values of 8 bits: the same bits however they are computed, kept and read again, not far from those in bf16, and
//! refused where they would be misread.

use std::path::PathBuf;

use heg_runtime::Loaded;
use heg_runtime::exec::{Executor, ExecutorOptions, diagnose};
use heg_runtime::score::{Passage, RowKind, score_against};
use heg_spec::{Activations, KvForm, ModelSpec, WeightForm, shipped};
use heg_tests::roles::roles;
use heg_tests::{Workbench, executor, fixture, openvino_or_skip, refused};

use super::{baked, check, count, kept, prompts, tiny_agent};
use crate::gpu_lanes::gpu_or_skip;

/// `tiny-agent` with keys and values of 8 bits.
fn narrow() -> (Workbench, PathBuf) {
    let workbench = Workbench::new().unwrap();
    let change = |spec: &mut ModelSpec| spec.kv = KvForm::I8;
    let compiled = workbench.compile(&fixture("tiny-agent"), "narrow", change);
    let bundle = compiled.unwrap().0;
    (workbench, bundle)
}

#[test]
fn tiny_agent_says_the_same_with_a_cache_of_integers() {
    let (_workbench, bundle) = narrow();
    let prompts = prompts(count(200, 12), 2048);
    check(&bundle, &prompts, 4, Activations::I8);
    check(&bundle, &prompts[..6], 3, Activations::F32);
}

#[test]
fn pages_of_integers_are_kept() {
    kept::check(&kept::Subject::new(narrow(), prompts(count(66, 6), 2048)));
}

#[test]
fn pages_of_integers_are_baked() {
    let subject = baked::Subject::new(narrow(), 2048, 5);
    baked::check(&subject);
}

#[test]
fn bits_of_a_state_of_integers_are_those_of_their_revision() {
    let pinned = baked::bits_of_revision(&baked::Subject::new(narrow(), 2048, 1));
    insta::assert_snapshot!(pinned, @"revision 2: a880c319d274ccbf58b67339c9b1fe804c096df14f67ed5c13c99aa4d1a4f439");
}

/// Token by token, and in chunks. Random tokens are a hard case: the evaluation's texts differ by a fifth of that.
#[test]
fn distributions_are_near_those_in_bf16() {
    let (_one, narrow) = narrow();
    let (_other, wide) = tiny_agent();
    let mut model = executor(&narrow, "host-cpu", 64).unwrap();
    let mut against = executor(&wide, "host-cpu", 64).unwrap();
    let passages = prompts(count(60, 6), 2048).into_iter();
    let passages = passages.filter(|prompt| prompt.len() > 1);
    let passages: Vec<Passage> = passages
        .map(|prompt| Passage::new(prompt, 1, model.manifest()).unwrap())
        .collect();
    let mut both = [RowKind::Prefill, RowKind::Decode].into_iter().map(|rows| {
        let scores = score_against(&mut model, &mut against, &passages, rows, &mut |_| ());
        scores.unwrap().kl.unwrap()
    });
    let (prefill, decode) = (both.next().unwrap(), both.next().unwrap());
    assert_eq!(prefill, decode);
    assert!(prefill > 0.0 && prefill < 6e-3, "{prefill}");
}

/// A token takes as much memory as the rows of all layers: two heads of 32 with a scale each.
#[test]
fn a_token_takes_half_the_memory() {
    let (_one, narrow) = narrow();
    let (_other, wide) = tiny_agent();
    let bytes = |bundle: &PathBuf| {
        let executor = executor(bundle, "host-cpu", 64).unwrap();
        let bytes = executor.kv_bytes_per_token().unwrap();
        assert_eq!(executor.kv_shape().token_bytes() as u64, bytes);
        bytes
    };
    assert_eq!(bytes(&wide), 6 * 2 * 2 * 32 * 2);
    assert_eq!(bytes(&narrow), 6 * 2 * 2 * (32 + 2));
}

#[test]
fn known_answers_hold_with_a_cache_of_integers() {
    let (_workbench, bundle) = narrow();
    for name in ["host-cpu", "host-cpu-f32", "host-pair", "host-roles"] {
        let soc = shipped::soc(name).unwrap();
        let loader = Loaded::open(&bundle).unwrap().loader(&soc).unwrap();
        let diagnosis = diagnose(&loader, |_| ()).unwrap();
        assert!(!diagnosis.found_wrong(), "{name}: {:?}", diagnosis.examined);
    }
}

#[test]
fn openvino_refuses_a_cache_of_integers() {
    if !openvino_or_skip("openvino_refuses_a_cache_of_integers") {
        return;
    }
    let (_workbench, bundle) = narrow();
    let loader = Loaded::open(&bundle).unwrap();
    let loader = loader.loader(&roles(&["Cpu"])).unwrap();
    let executor = Executor::new(loader, ExecutorOptions::default());
    let error = executor.and_then(|mut it| it.wait_ready()).unwrap_err();
    let expected = "keys and values of the bundle are I8, which CPU programs alone take: give the SoC programs, or compile \
                    the model with `--kv bf16`";
    let said = heg_runtime::exec::chain(&error);
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_gpu_leaves_a_cache_of_integers_to_the_cpu() {
    if !gpu_or_skip("a_gpu_leaves_a_cache_of_integers_to_the_cpu") {
        return;
    }
    let (_workbench, bundle) = narrow();
    let prompt = &prompts(3, 2048)[2];
    let answer = |soc: &str| {
        let mut executor = executor(&bundle, soc, 64).unwrap();
        let mut sequence = executor.sequence().unwrap();
        let tokens = heg_tests::greedy(&mut executor, &mut sequence, prompt, 6).unwrap();
        (tokens, executor.descents().get().to_vec())
    };
    let (expected, _) = answer("host-cpu");
    let (tokens, descents) = answer("host-gpu");
    assert_eq!(tokens, expected);
    let lines = heg_runtime::summary(&descents);
    let why = "the element type of keys and values";
    assert!(lines.iter().any(|line| line.contains(why)), "{lines:?}");
}

#[test]
fn floats_have_no_cache_of_integers() {
    let workbench = Workbench::new().unwrap();
    let said = refused(&workbench, &fixture("tiny-agent"), |spec| {
        spec.weights = WeightForm::F16;
        spec.kv = KvForm::I8;
    });
    let expected = "error: `kv` is `I8` beside F16 weights, expected W8A16 or W4A16: choose such weights, or leave `kv` out";
    assert_eq!(said, expected);
}
