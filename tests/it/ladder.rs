//! Descents on the ladder, on real devices: a missing, unsuitable, damaged or wrong kernel is reported, and the tokens
//! stay right.

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{Manifest, Weight};
use heg_files::OwnFolder;
use heg_runtime::exec::{Executor, ExecutorOptions, clear_quarantine, diagnose};
use heg_runtime::{Descent, Reason, summary};
use heg_spec::{DeviceClass, Group, ModelSpec, WeightForm, shipped};
use heg_tests::roles::{changed, compile, drop_unused, loader, rewrite, roles, run, soc};
use heg_tests::{Workbench, openvino_or_skip};

fn ffn_weight(manifest: &Manifest, layer: usize) -> &Weight {
    let ffn = &manifest.layers[layer].ffn;
    &manifest.weights[ffn.weights[0].0 as usize]
}

#[test]
fn attention_runs_in_buckets_where_only_the_npu_and_the_cpu_are_there() {
    if !openvino_or_skip("attention in buckets") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let npu = roles(&["Npu", "Cpu"]);
    let exact = |spec: &mut ModelSpec| spec.weights = WeightForm::F32;
    let bundle = compile(&workbench, exact);
    let (expected, descents) = run(loader(&bundle, &roles(&["Cpu"])));
    assert!(descents.is_empty(), "{descents:?}");
    let (tokens, descents) = run(loader(&bundle, &npu));
    assert_eq!(tokens, expected);
    assert!(descents.is_empty(), "{:?}", summary(&descents));
    // Without a bucket for the whole context, the CPU continues where the buckets end, amid the answer.
    let short = compile(&workbench, |spec| {
        spec.weights = WeightForm::F32;
        spec.mha_context_tokens = vec![8, 16];
    });
    let (tokens, descents) = run(loader(&short, &npu));
    assert_eq!(tokens, expected);
    let lines = summary(&descents);
    let expected = "mha: CPU as npu -> CPU IR dynamic: no form for 32 tokens over 1024 rows";
    assert_eq!(lines, [expected]);
}

#[test]
fn every_form_is_right_on_the_hosts_machines() {
    if !openvino_or_skip("known answers on the host's machines") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = compile(&workbench, |_| ());
    for name in ["host-cpu", "host-pair", "host-pair-npu", "host-roles"] {
        let loader = loader(&bundle, &shipped::soc(name).unwrap());
        let diagnosis = diagnose(&loader, |_| ()).unwrap();
        assert!(!diagnosis.found_wrong(), "{name}: {:?}", diagnosis.examined);
    }
}

#[test]
fn a_device_that_is_not_there_is_said_and_passed_over() {
    if !openvino_or_skip("a device that is not there") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = compile(&workbench, |_| ());
    let absent = soc(
        "(class: Npu, openvino: \"NPU.7\"), (class: Cpu, openvino: \"CPU\", \
         properties: {\"INFERENCE_PRECISION_HINT\": \"f32\"})",
    );
    let (expected, _) = run(loader(&bundle, &roles(&["Cpu"])));
    let (tokens, descents) = run(loader(&bundle, &absent));
    assert_eq!(tokens, expected);
    assert!(!descents.is_empty());
    for descent in &descents {
        assert!(matches!(descent.reason, Reason::Missing(_)), "{descent:?}");
        assert_eq!(descent.to.as_ref().unwrap().device, "CPU");
    }
    let only = soc("(class: Npu, openvino: \"NPU.7\")");
    let error = Executor::new(loader(&bundle, &only), ExecutorOptions::default())
        .and_then(|mut executor| executor.wait_ready())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("nothing is left to run kernel"),
        "{error}"
    );
}

#[test]
fn every_kernel_of_every_role_answers_rightly() {
    if !openvino_or_skip("every kernel answers rightly") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = compile(&workbench, |_| ());
    for soc in [
        roles(&["Cpu"]),
        roles(&["Npu", "Igpu"]),
        roles(&["Npu", "Igpu", "Cpu"]),
    ] {
        let diagnosis = diagnose(&loader(&bundle, &soc), |_| ()).unwrap();
        assert!(!diagnosis.found_wrong(), "{diagnosis:?}");
        let answers = diagnosis.examined.iter();
        let asked = answers.filter_map(|one| one.outcome.verdict()).count();
        assert_eq!(asked, diagnosis.examined.len(), "{diagnosis:?}");
        assert!(asked >= 5);
    }
}

#[test]
fn damage_in_memory_is_found_and_repaired() {
    if !openvino_or_skip("damage in memory") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = compile(&workbench, |_| ());
    let opened = Bundle::open(&bundle).unwrap();
    let weight = ffn_weight(opened.manifest(), 1);
    let sections = [
        (
            weight.values,
            (|bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x40)) as fn(&mut [u8]),
        ),
        (weight.scales.unwrap(), |bytes| {
            // One scale, four times as large.
            let scale = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            bytes[..4].copy_from_slice(&(scale * 4.0).to_le_bytes());
        }),
    ];
    let machines = [&["Cpu"][..], &["Npu", "Igpu"], &["Npu", "Cpu"]];
    for (number, classes) in machines.into_iter().enumerate() {
        let soc = roles(classes);
        let (expected, _) = run(loader(&bundle, &soc));
        // A quantised value on one machine, a scale on the next.
        let (section, change) = sections[number % 2];
        let memory = changed(&bundle, section, change);
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let damaged = || {
            let loader = loader(&bundle, &soc).with_cache(cache.clone());
            loader.with_memory(memory.clone())
        };
        let (tokens, descents) = run(damaged());
        assert_eq!(tokens, expected, "{classes:?}");
        let found = |descent: &Descent| matches!(descent.reason, Reason::Damaged { .. });
        assert!(descents.iter().any(found), "{classes:?}: {descents:?}");
        assert!(
            descents
                .iter()
                .filter(|descent| found(descent))
                .all(|d| d.kernel == "ffn")
        );
        // The damage is temporary: the device is not blamed for it later.
        let (tokens, descents) = run(loader(&bundle, &soc).with_cache(cache.clone()));
        assert_eq!(tokens, expected);
        assert!(!descents.iter().any(found), "{descents:?}");
        // A kernel that was right before is not tested again, except by the doctor, who finds the damage.
        assert!(diagnose(&damaged(), |_| ()).unwrap().found_wrong());
    }
}

#[test]
fn a_variant_that_computes_something_else_is_quarantined_and_replaced() {
    if !openvino_or_skip("a wrong variant") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = compile(&workbench, |_| ());
    let wrong = rewrite(&workbench, &bundle, "wrong", |manifest, store| {
        let bytes = std::fs::read(&bundle).unwrap();
        let opened = Bundle::open(&bundle).unwrap();
        let ffn = manifest
            .kernels
            .iter_mut()
            .find(|kernel| kernel.group == Group::Ffn)
            .unwrap();
        for variant in &mut ffn.variants {
            if variant.device != DeviceClass::Npu {
                continue;
            }
            let range = opened.section_range(variant.ir).unwrap();
            let ir = &bytes[range.start as usize..range.end as usize];
            let ir = String::from_utf8(ir.to_vec()).unwrap();
            // A compiler's mistake: another activation.
            assert!(ir.contains("type=\"Swish\""));
            let ir = ir.replace(
                "type=\"Swish\" version=\"opset4\"",
                "type=\"Sigmoid\" version=\"opset1\"",
            );
            let section = store.put_bytes(ir.as_bytes()).unwrap();
            variant.ir = section.id;
            if !manifest.sections.iter().any(|known| known.id == section.id) {
                manifest.sections.push(section);
            }
        }
        drop_unused(manifest);
    });
    let folder = tempfile::tempdir().unwrap();
    let cache = OwnFolder::create(folder.path()).unwrap();
    let soc = roles(&["Npu", "Igpu", "Cpu"]);
    let (expected, _) = run(loader(&bundle, &soc));
    let cached = || loader(&wrong, &soc).with_cache(cache.clone());
    let quarantined = |descents: &[Descent]| {
        let wrong = |descent: &&Descent| matches!(descent.reason, Reason::Wrong { .. });
        descents.iter().filter(wrong).count()
    };
    let (tokens, first) = run(cached());
    assert_eq!(tokens, expected);
    assert!(quarantined(&first) > 0, "{first:?}");
    let lines = summary(&first).join("\n");
    assert!(lines.contains("CPU as npu IR -> CPU as igpu IR"), "{lines}");
    // The verdict is remembered: the result is the same, and no kernel is tested.
    let (tokens, second) = run(cached());
    assert_eq!(
        (tokens, quarantined(&second)),
        (expected, quarantined(&first))
    );
    assert!(diagnose(&cached(), |_| ()).unwrap().found_wrong());
    assert!(clear_quarantine(&cached()).unwrap() > 0);
    assert_eq!(clear_quarantine(&cached()).unwrap(), 0);
    // If no rung is left, the load fails.
    let only = loader(&wrong, &roles(&["Npu"]));
    let mut executor = Executor::new(only, ExecutorOptions::default()).unwrap();
    let error = executor.wait_ready().unwrap_err().to_string();
    assert!(
        error.contains("quarantined: its known answer differs by"),
        "{error}"
    );
}

/// A device that fails has computed nothing: it may work at the next start.
#[test]
fn a_kernel_that_fails_is_passed_over_and_not_quarantined() {
    if !openvino_or_skip("a failing kernel") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    // In f32 every device has a variant of its own, and the next can replace one that fails.
    let bundle = compile(&workbench, |spec| spec.weights = WeightForm::F32);
    let failing = rewrite(&workbench, &bundle, "failing", |manifest, store| {
        let opened = Bundle::open(&bundle).unwrap();
        let ffn = manifest
            .kernels
            .iter_mut()
            .find(|kernel| kernel.group == Group::Ffn)
            .unwrap();
        for variant in &mut ffn.variants {
            if variant.device != DeviceClass::Igpu {
                continue;
            }
            let ir = opened.section_copy(variant.ir).unwrap();
            let ir = String::from_utf8(ir).unwrap();
            let swish = "type=\"Swish\" version=\"opset4\">";
            assert!(ir.contains(swish));
            // It compiles for any number of rows, and runs for multiples of three: not for the question's two.
            let shuffle =
                "type=\"ShuffleChannels\" version=\"opset1\">\n<data axis=\"0\" group=\"3\"/>";
            let section = store
                .put_bytes(ir.replace(swish, shuffle).as_bytes())
                .unwrap();
            variant.ir = section.id;
            if !manifest.sections.iter().any(|known| known.id == section.id) {
                manifest.sections.push(section);
            }
        }
        drop_unused(manifest);
    });
    let folder = tempfile::tempdir().unwrap();
    let cache = OwnFolder::create(folder.path()).unwrap();
    let soc = roles(&["Igpu", "Cpu"]);
    let (expected, _) = run(loader(&bundle, &soc));
    let cached = || loader(&failing, &soc).with_cache(cache.clone());
    let (tokens, descents) = run(cached());
    assert_eq!(tokens, expected);
    let refused = |descent: &Descent| matches!(descent.reason, Reason::Refused(_));
    assert!(descents.iter().any(refused), "{descents:?}");
    assert_eq!(
        clear_quarantine(&cached()).unwrap(),
        0,
        "nothing is remembered of it"
    );
}
