//! Golden numerics: every family against its reference, in f32, for all prompts, chunk sizes and bindings.

use std::path::Path;

use heg_runtime::exec::{Executor, ExecutorOptions};
use heg_sched::{Logits, chunks};
use heg_spec::{GroupColumns, WeightForm};
use heg_tests::golden;
use heg_tests::roles::{loader, roles};
use heg_tests::{FAMILIES, Workbench, executor, fixture, greedy, openvino_or_skip};

/// Largest difference of a logit, relative to the largest reference logit.
const TOLERANCE: f32 = 1e-3;

/// Largest root mean square difference of logits with 4-bit weights, relative to that of the logits. Measured: 0.16 to
/// 0.59; unrelated logits have 1.4.
const FOUR_BITS_ERROR: f32 = 0.75;

/// Checks a family. `host-cpu-f32` and `host-roles` run CPU programs, on one device and on two; `host-roles-openvino`
/// runs the NPU's forms, with weights as inputs.
fn check_family(family: &str, soc: &str, chunk_sizes: &[usize]) {
    if soc == "host-roles-openvino" && !openvino_or_skip(family) {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let (bundle, _) = workbench
        .compile(&fixture(&format!("golden/{family}")), family, |spec| {
            spec.weights = WeightForm::F32;
            spec.chunk_tokens = vec![1, 7, 32, 256];
        })
        .unwrap();
    for chunk in chunk_sizes {
        check_chunk(&bundle, family, soc, *chunk);
    }
}

/// Checks 4-bit weights in groups, on programs with exact and with 8-bit activations: the last logits of all prompts.
/// The weights of these models are random and few, so 4 bits represent them worse than those of trained models.
fn check_four_bits(family: &str) {
    let workbench = Workbench::new().unwrap();
    let (bundle, _) = workbench
        .compile(&fixture(&format!("golden/{family}")), family, |spec| {
            spec.weights = WeightForm::W4A16 {
                group: GroupColumns::SMALLEST,
                symmetric: false,
            };
        })
        .unwrap();
    for soc in ["host-cpu-f32", "host-cpu"] {
        let mut executor = executor(&bundle, soc, 32).unwrap();
        for case in golden::family(family).unwrap() {
            let found = last_logits(&mut executor, &case, 32);
            let squares =
                |numbers: &mut dyn Iterator<Item = f32>| -> f32 { numbers.map(|x| x * x).sum() };
            let pairs = found.iter().zip(&case.logits);
            let error = squares(&mut pairs.map(|(a, b)| a - b));
            let error = (error / squares(&mut case.logits.iter().copied())).sqrt();
            let name = format!("{family}, {soc}, prompt of {}", case.input_ids.len());
            println!("{name}: {error}");
            assert!(error <= FOUR_BITS_ERROR, "{name}: {error}");
        }
    }
}

/// Checks attention in buckets too, queries and cache padded: the NPU's forms, with only a CPU to run them.
fn check_buckets(family: &str) {
    if !openvino_or_skip(family) {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let (bundle, _) = workbench
        .compile(&fixture(&format!("golden/{family}")), family, |spec| {
            spec.weights = WeightForm::F32;
            spec.chunk_tokens = vec![8, 32];
            spec.mha_context_tokens = vec![48, 4096];
        })
        .unwrap();
    let npu = roles(&["Npu", "Cpu"]);
    let options = ExecutorOptions {
        chunk_tokens: 32,
        batch: 2,
        ..ExecutorOptions::default()
    };
    let mut executor = Executor::new(loader(&bundle, &npu), options).unwrap();
    for case in golden::family(family).unwrap() {
        let name = format!("{family}, buckets, prompt of {}", case.input_ids.len());
        check_logits(&mut executor, &case, 32, &name);
        check_greedy(&mut executor, &case, &name);
    }
    assert!(executor.descents().get().is_empty());
}

fn check_chunk(bundle: &Path, family: &str, soc: &str, chunk: usize) {
    let mut executor = executor(bundle, soc, chunk).unwrap();
    for case in golden::family(family).unwrap() {
        let name = format!(
            "{family}, {soc}, prompt of {}, chunk {chunk}",
            case.input_ids.len()
        );
        check_logits(&mut executor, &case, chunk, &name);
        check_greedy(&mut executor, &case, &name);
    }
}

fn last_logits(executor: &mut Executor, case: &golden::Case, chunk: usize) -> Vec<f32> {
    let mut sequence = executor.sequence().unwrap();
    let mut found = Vec::new();
    for range in chunks(case.input_ids.len(), chunk) {
        found = executor
            .prefill(&mut sequence, &case.input_ids[range], Logits::LastRows)
            .unwrap()
            .to_vec();
    }
    found
}

fn check_logits(executor: &mut Executor, case: &golden::Case, chunk: usize, name: &str) {
    let found = last_logits(executor, case, chunk);
    let largest = case.logits.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let worst = found
        .iter()
        .zip(&case.logits)
        .map(|(found, expected)| (found - expected).abs() / largest)
        .fold(0.0, f32::max);
    assert_eq!(found.len(), case.logits.len(), "{name}");
    assert!(
        worst <= TOLERANCE,
        "{name}: worst logit differs by {worst}, expected at most {TOLERANCE}"
    );
}

fn check_greedy(executor: &mut Executor, case: &golden::Case, name: &str) {
    let mut sequence = executor.sequence().unwrap();
    let tokens_max = case.greedy_ids.len();
    let found = greedy(executor, &mut sequence, &case.input_ids, tokens_max).unwrap();
    assert_eq!(found, case.greedy_ids, "{name}");
}

macro_rules! families {
    ($($family:ident),+) => {
        mod programs {
            $(#[test]
            fn $family() {
                super::check_family(stringify!($family), "host-cpu-f32", &[1, 7, 32, 256]);
            })+
        }

        mod two_lanes {
            $(#[test]
            fn $family() {
                super::check_family(stringify!($family), "host-roles", &[7, 256]);
            })+
        }

        mod inputs {
            $(#[test]
            fn $family() {
                super::check_family(stringify!($family), "host-roles-openvino", &[1, 7, 32, 256]);
            })+
        }

        mod buckets {
            $(#[test]
            fn $family() {
                super::check_buckets(stringify!($family));
            })+
        }

        mod four_bits {
            $(#[test]
            fn $family() {
                super::check_four_bits(stringify!($family));
            })+
        }

        #[test]
        fn every_family_is_tested() {
            assert_eq!([$(stringify!($family)),+], FAMILIES);
        }
    };
}

families!(
    gemma2, gemma3, granite, llama, mistral, olmo2, phi3, qwen2, qwen3, smollm3
);
