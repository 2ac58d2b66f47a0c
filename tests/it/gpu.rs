//! Whole models on a GPU beside the CPU programs of the engine: every logit of every pass, bit by bit, for all families
//! and forms of weights. The device is the one that `HEG_VK_DRIVER` names, or the first that is there.

use std::path::Path;
use std::sync::Arc;

use heg_artifacts::Bundle;
use heg_gpu::{GpuDevice, GpuError, GpuModel, GpuModelOptions, GpuOptions, RowState};
use heg_sched::Logits;
use heg_spec::{Activations, GroupColumns, WeightForm};
use heg_tests::{FAMILIES, Workbench, executor, fixture, skipped};

/// Returns the device, with validation; `None`, after a note, if there is none.
pub(crate) fn device_or_skip(test: &str) -> Option<Arc<GpuDevice>> {
    let options = GpuOptions {
        validation: true,
        ..GpuOptions::from_environment()
    };
    match GpuDevice::open(&options) {
        Ok(device) => Some(Arc::new(device)),
        Err(error @ (GpuError::NoLoader { .. } | GpuError::NoDevice { .. })) => {
            let required = std::env::var_os("HEG_REQUIRE_GPU").is_some();
            assert!(!required, "{test}: {error}");
            skipped(&format!("{test}: {error}"));
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

/// Rows of passes: a chunk, one that is not whole, single tokens.
const PASSES: [usize; 5] = [32, 7, 1, 1, 1];

/// Runs the same passes on both and compares logits.
fn check(device: &Arc<GpuDevice>, bundle: &Path, soc: &str, activations: Activations, what: &str) {
    let mut on_cpu = executor(bundle, soc, 32).unwrap();
    let options = GpuModelOptions {
        activations,
        rows: 32,
        cache_rows: 64,
    };
    let opened = Arc::new(Bundle::open(bundle).unwrap());
    let vocab = opened.manifest().model.vocab;
    let mut on_gpu = GpuModel::new(Arc::clone(device), opened, options).unwrap();
    let mut sequence = on_cpu.sequence().unwrap();
    let mut position = 0;
    for rows in PASSES {
        let positions = position..position + rows as u32;
        let tokens: Vec<u32> = positions.clone().map(|at| (3 + at * 37) % vocab).collect();
        let state = |(position, token): (u32, &u32)| RowState {
            position,
            cache_row: position,
            token: *token,
            ..RowState::default()
        };
        let states: Vec<_> = positions.zip(&tokens).map(state).collect();
        let found = on_gpu.run(&states, &[rows as u32 - 1]).unwrap();
        let expected = on_cpu
            .prefill(&mut sequence, &tokens, Logits::LastRows)
            .unwrap();
        let pairs = found.iter().zip(expected.iter());
        let wrong = pairs
            .clone()
            .filter(|(a, b)| a.to_bits() != b.to_bits())
            .count();
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert_eq!(found.len(), expected.len(), "{what}");
        assert_eq!(
            wrong, 0,
            "{what}, {rows} rows at {position}: logits differ by {worst}"
        );
        position += rows as u32;
    }
    assert_eq!(device.complaints(), [""; 0], "{what}");
}

fn check_families(test: &str, weights: WeightForm, soc: &str, activations: Activations) {
    let Some(device) = device_or_skip(test) else {
        return;
    };
    let workbench = Workbench::new().unwrap();
    for family in FAMILIES {
        let folder = fixture(&format!("golden/{family}"));
        let name = format!("{family}-{test}");
        let compiled = workbench.compile(&folder, &name, |spec| spec.weights = weights);
        let (bundle, _) = compiled.unwrap();
        check(&device, &bundle, soc, activations, &name);
    }
    println!("{test}: {} pipelines", device.pipeline_count());
}

#[test]
fn bytes() {
    check_families("bytes", WeightForm::W8A16, "host-cpu", Activations::I8);
}

#[test]
fn nibbles() {
    let weights = WeightForm::W4A16 {
        group: GroupColumns::SMALLEST,
        symmetric: false,
    };
    check_families("nibbles", weights, "host-cpu", Activations::I8);
}

#[test]
fn floats() {
    check_families("floats", WeightForm::F32, "host-cpu-f32", Activations::F32);
}
