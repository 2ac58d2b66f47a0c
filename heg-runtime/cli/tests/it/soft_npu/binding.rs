//! Answers come from the memory that is bound: another weight changes them.

use std::path::PathBuf;

use heg_artifacts::manifest::Manifest;
use heg_artifacts::{Bundle, Store, write_bundle};
use heg_tests::soft_npu::soft_npu_or_skip;
use serde_json::Value;

use super::{answer, bundle, folder, heg};

/// Writes the bundle with another manifest over the same sections.
fn rewritten(name: &str, change: impl FnOnce(&mut Manifest)) -> PathBuf {
    let store = Store::open(folder().join("store")).unwrap();
    let mut manifest = Bundle::open(bundle()).unwrap().manifest().clone();
    change(&mut manifest);
    let path = folder().join(format!("{name}.heg"));
    write_bundle(&path, &manifest, &store, &|_| ()).unwrap();
    path
}

/// Kernels and layers that `heg doctor` finds wrong on the NPU.
fn wrong_on_npu(bundle: &std::path::Path, platform: &str, soc: &str) -> Vec<(String, u64)> {
    let arguments = ["doctor", bundle.to_str().unwrap(), "--soc", soc, "--json"];
    let ran = heg(bundle, &arguments, &[("PLATFORM", platform)]);
    ran.assert_nothing_left();
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let entries = report["kernels"].as_array().unwrap().iter();
    entries
        .filter(|entry| entry["device"] == "NPU" && entry["verdict"] == "WRONG")
        .map(|entry| {
            let kernel = entry["kernel"].as_str().unwrap().to_owned();
            (kernel, entry["layer"].as_u64().unwrap())
        })
        .collect()
}

/// Layers that have each other's weights are found out: nothing is looked up by name.
#[test]
fn another_layers_weights_give_a_wrong_answer() {
    if !soft_npu_or_skip("weights of another layer on a software NPU") {
        return;
    }
    let swapped = rewritten("swapped", |manifest| {
        let first = manifest.layers[0].ffn.weights.clone();
        let second = std::mem::replace(&mut manifest.layers[1].ffn.weights, first);
        manifest.layers[0].ffn.weights = second;
    });
    for (platform, soc) in [("3720", "core-ultra-5-125h"), ("4000", "core-ultra-7-258v")] {
        let expected = [("ffn".to_owned(), 0), ("ffn".to_owned(), 1)];
        assert_eq!(
            wrong_on_npu(&swapped, platform, soc),
            expected,
            "{platform}"
        );
    }
}

/// One weight of the wrong place, of the same shape: the order of ports matters.
#[test]
fn two_weights_in_the_wrong_order_give_a_wrong_answer() {
    if !soft_npu_or_skip("weights in the wrong order on a software NPU") {
        return;
    }
    let exchanged = rewritten("exchanged", |manifest| {
        let shapes: Vec<Vec<u32>> = manifest.kernels[manifest.layers[2].ffn.kernel.0 as usize]
            .parameters
            .iter()
            .map(|parameter| parameter.shape.clone())
            .collect();
        let pairs = (0..shapes.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let mut same = pairs.filter(|(a, b)| shapes[*a] == shapes[*b] && shapes[*a].len() == 2);
        let (a, b) = same.next().unwrap();
        manifest.layers[2].ffn.weights.swap(a, b);
    });
    let found = wrong_on_npu(&exchanged, "4000", "core-ultra-7-258v");
    assert_eq!(found, [("ffn".to_owned(), 2)]);
}

/// The device never sees memory that it does not know, and 3720 never imports pages.
#[test]
fn arguments_are_in_memory_that_the_device_knows() {
    if !soft_npu_or_skip("arguments on a software NPU") {
        return;
    }
    for (platform, soc) in [("3720", "core-ultra-5-125h"), ("4000", "core-ultra-7-258v")] {
        let ran = heg(
            bundle(),
            &answer(bundle(), soc, "Hello"),
            &[("PLATFORM", platform)],
        );
        ran.assert_well();
        let unknown = |word| {
            let calls = ran.log.of(word);
            calls
                .filter(|call| call.field("memory") == "unknown")
                .count()
        };
        assert_eq!(
            (unknown("argument"), unknown("update")),
            (0, 0),
            "{platform}"
        );
        assert_eq!(ran.log.count("REFUSED"), 0, "{platform}");
        let imported = ran.log.of("import").filter(|call| call.number("code") == 0);
        assert_eq!(imported.count() > 0, platform != "3720", "{platform}");
    }
}
