//! Single kernels: every place in every variant gives the same answer to the same question, padded or not.

use heg_artifacts::manifest::{Kernel, KnownAnswers, Role};
use heg_openvino::Core;
use heg_runtime::exec::{Loader, LoneKernel, Place};
use heg_runtime::{Loaded, Rung, RungSource};
use heg_spec::{DeviceClass, Group};
use heg_tests::{Workbench, fixture, openvino_or_skip};

const ASKED: KnownAnswers = KnownAnswers {
    seed: 11,
    rows: 5,
    context: 12,
};

/// Returns all outputs of a rung for the question, concatenated in one row.
fn answer(loader: &Loader, place: Place, rung: Rung) -> Vec<f32> {
    outputs(LoneKernel::prepare(loader, place, rung).unwrap())
}

fn outputs(mut lone: LoneKernel) -> Vec<f32> {
    lone.size(ASKED.rows as usize, ASKED.context as usize)
        .unwrap();
    lone.set_position(ASKED.position() as usize).unwrap();
    let inputs: Vec<_> = lone.inputs().cloned().collect();
    for port in inputs {
        if !matches!(port.role, Role::Position | Role::Cos | Role::Sin) {
            lone.set(port.role, &ASKED.values(&port)).unwrap();
        }
    }
    lone.infer().unwrap();
    let outputs: Vec<_> = lone.outputs().map(|port| port.role).collect();
    let values = outputs
        .iter()
        .flat_map(|role| lone.get(*role).unwrap().unwrap());
    values.collect()
}

fn rungs(kernel: &Kernel, role: DeviceClass) -> Vec<Rung> {
    (0..)
        .zip(&kernel.variants)
        .filter(|(_, variant)| variant.device == role)
        .filter(|(_, variant)| {
            variant
                .shape
                .admits(ASKED.rows as usize, ASKED.context as usize)
        })
        .map(|(variant, _)| Rung {
            role,
            variant,
            source: RungSource::Ir,
        })
        .collect()
}

fn assert_close(found: &[f32], expected: &[f32], name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected
        .iter()
        .fold(0.0_f32, |max, value| max.max(value.abs()));
    assert!(largest > 1e-3, "{name} answers {largest} at most");
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0, f32::max) / largest;
    assert!(worst < 1e-4, "{name} differs by {worst}");
}

#[test]
fn every_variant_of_a_place_answers_alike() {
    if !openvino_or_skip("lone") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let (bundle, _) = workbench
        .compile(&fixture("golden/llama"), "llama", |spec| {
            spec.weights = heg_spec::WeightForm::F32;
            spec.chunk_tokens = vec![4, 8];
        })
        .unwrap();
    let loaded = Loaded::open(&bundle).unwrap();
    let core = Core::load().unwrap();
    let loader = |soc: &str| {
        let soc = heg_spec::shipped::soc(soc).unwrap();
        Loader::new(core.clone(), loaded.bundle().clone(), soc).unwrap()
    };
    let (constants, inputs) = (loader("host-cpu-f32"), loader("host-roles-openvino"));
    let manifest = loaded.bundle().manifest();
    let place = |layer, group| Place { layer, group };
    let places = [
        (place(Some(1), Group::Qkv), manifest.layers[1].qkv.kernel),
        (place(Some(1), Group::Mha), manifest.layers[1].mha.kernel),
        (place(Some(0), Group::Ffn), manifest.layers[0].ffn.kernel),
        (place(None, Group::Head), manifest.head.kernel),
    ];
    for (place, kernel) in places {
        let kernel = &manifest.kernels[kernel.0 as usize];
        let expected = answer(&constants, place, rungs(kernel, DeviceClass::Cpu)[0]);
        let others = [DeviceClass::Igpu, DeviceClass::Npu].map(|role| rungs(kernel, role));
        for rung in others.concat() {
            let found = answer(&inputs, place, rung);
            assert_close(&found, &expected, &format!("{place:?} {rung:?}"));
        }
    }
}

/// Includes families with sliding windows, capped scores and several attentions.
#[test]
fn static_attention_over_fewer_rows_answers_alike() {
    if !openvino_or_skip("lone") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    for family in ["llama", "gemma2", "gemma3"] {
        let (bundle, _) = workbench
            .compile(&fixture(&format!("golden/{family}")), family, |spec| {
                spec.weights = heg_spec::WeightForm::F32;
                spec.chunk_tokens = vec![8];
                spec.mha_context_tokens = vec![64];
            })
            .unwrap();
        let loaded = Loaded::open(&bundle).unwrap();
        let loader = loaded
            .loader(&heg_spec::shipped::soc("host-roles-openvino").unwrap())
            .unwrap();
        let manifest = loaded.bundle().manifest();
        for (layer, used) in (0..).zip(&manifest.layers) {
            let place = Place {
                layer: Some(layer),
                group: Group::Mha,
            };
            let kernel = &manifest.kernels[used.mha.kernel.0 as usize];
            let dynamic = rungs(kernel, DeviceClass::Igpu)[0];
            let expected = answer(&loader, place, dynamic);
            let bucket = rungs(kernel, DeviceClass::Npu)[0];
            for context in [12, 13, 40, 63, 64] {
                let narrowed = LoneKernel::prepare_over(&loader, place, bucket, context).unwrap();
                let name = format!("{family}, {place:?} over {context} rows");
                assert_close(&outputs(narrowed), &expected, &name);
            }
        }
    }
}
