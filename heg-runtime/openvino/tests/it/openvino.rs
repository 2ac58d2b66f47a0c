//! Tests of the crate against the real OpenVINO, on the CPU plugin: memory, shapes, properties.
//!
//! Asynchronous runs are in `running.rs`, errors in `refusals.rs`. Skipped, and reported, if OpenVINO is not installed.

use std::sync::Arc;

use crate::tiny_models::{add, buffer, bytes, core, rows};
use heg_openvino::{
    Access, CompiledModel, Core, DeviceMemory, HostBuffer, Memory, OpenvinoError, Tensor,
    TensorType,
};

fn compile_add(core: &Core, b: &[f32; 4]) -> CompiledModel {
    let model = core
        .read_model(add().as_bytes(), Some(&bytes(&buffer(b))))
        .unwrap();
    core.compile(&model, "CPU", &[("INFERENCE_PRECISION_HINT", "f32")])
        .unwrap()
}

fn fails<T>(result: Result<T, OpenvinoError>, text: &str) {
    let error = result.err().expect("an error").to_string();
    assert_eq!(error, text);
}

#[test]
fn devices_have_names_and_properties() {
    let Some(core) = core() else { return };
    assert!(core.version().starts_with("2026.4."), "{}", core.version());
    assert!(
        core.available_devices()
            .unwrap()
            .contains(&"CPU".to_owned())
    );
    assert!(
        !core
            .device_property("CPU", "FULL_DEVICE_NAME")
            .unwrap()
            .is_empty()
    );
    let error = core.device_property("CPU", "NO_SUCH_PROPERTY").unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("`ov_core_get_property` failed with `GENERAL_ERROR`: "),
        "{text}"
    );
    assert!(text.contains("NO_SUCH_PROPERTY"), "{text}");
}

/// Of the devices of our set-up only an NPU shares its memory.
#[test]
fn a_device_without_memory_of_its_own_says_so() {
    let Some(core) = core() else { return };
    let error = DeviceMemory::of(core, "CPU").unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("`ov_core_get_default_context` failed"),
        "{text}"
    );
}

#[test]
fn a_device_property_is_the_default_of_what_is_compiled() {
    let Some(shared) = core() else { return };
    // A core of its own, since other tests compile on the shared one meanwhile.
    let core = Core::load().unwrap();
    core.set_property("CPU", "INFERENCE_NUM_THREADS", "1")
        .unwrap();
    assert_eq!(
        core.device_property("CPU", "INFERENCE_NUM_THREADS")
            .unwrap(),
        "1"
    );
    assert_eq!(
        compile_add(&core, &[0.0; 4])
            .property("INFERENCE_NUM_THREADS")
            .unwrap(),
        "1"
    );
    assert_ne!(
        shared
            .device_property("CPU", "INFERENCE_NUM_THREADS")
            .unwrap(),
        "1"
    );
}

#[test]
fn a_property_of_what_is_compiled_changes_where_its_plugin_allows_it() {
    let Some(core) = core() else { return };
    let model = core
        .read_model(add().as_bytes(), Some(&bytes(&buffer(&[0.0; 4]))))
        .unwrap();
    // OpenVINO's wheel has this plugin, which changes one; our set-up leaves it out.
    match core.compile(&model, "BATCH:CPU", &[]) {
        Ok(compiled) => {
            compiled.set_property("AUTO_BATCH_TIMEOUT", "123").unwrap();
            assert_eq!(compiled.property("AUTO_BATCH_TIMEOUT").unwrap(), "123");
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("is not registered"), "{text}");
            println!("skipped: a property that changes (needs all of OpenVINO's wheel)");
        }
    }
    let error = compile_add(core, &[0.0; 4])
        .set_property("MODEL_PRIORITY", "HIGH")
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("`ov_compiled_model_set_properties` failed with"),
        "{text}"
    );
}

#[test]
fn ports_are_described() {
    let Some(core) = core() else { return };
    let model = compile_add(core, &[0.0; 4]);
    for (ports, name) in [(model.inputs(), "x"), (model.outputs(), "y")] {
        assert_eq!(ports.len(), 1);
        assert_eq!(
            (ports[0].name.as_str(), ports[0].element),
            (name, TensorType::F32)
        );
        assert_eq!(
            (ports[0].shape.as_str(), ports[0].is_static()),
            ("[?,4]", false)
        );
    }
}

#[test]
fn constants_point_into_caller_memory_and_hold_it() {
    let Some(core) = core() else { return };
    let weights = buffer(&[1.0, 2.0, 3.0, 4.0]);
    let model = core
        .read_model(add().as_bytes(), Some(&bytes(&weights)))
        .unwrap();
    assert_eq!(Arc::strong_count(&weights), 2, "held by the model");
    // Values written after reading are compiled, so nothing was copied in between.
    weights.write_f32(0, &[10.0, 20.0, 30.0, 40.0]).unwrap();
    let compiled = core.compile(&model, "CPU", &[]).unwrap();
    drop(model);
    let mut request = compiled.request().unwrap();
    drop(compiled);
    assert_eq!(
        Arc::strong_count(&weights),
        2,
        "held by the request, through what it runs"
    );
    request
        .bind_input(0, rows(&buffer(&[1.0; 4]), 0, 1))
        .unwrap();
    request.infer().unwrap();
    assert_eq!(
        request.output(0).unwrap().to_f32().unwrap(),
        [11.0, 21.0, 31.0, 41.0]
    );
    drop(request);
    assert_eq!(Arc::strong_count(&weights), 1, "held by nothing any more");
}

#[test]
fn one_request_runs_with_any_number_of_rows() {
    let Some(core) = core() else { return };
    let mut request = compile_add(core, &[0.5, 0.5, 0.5, 0.5]).request().unwrap();
    for count in [1, 7, 2, 0, 3] {
        let x: Vec<f32> = (0..count * 4).map(|value| value as f32).collect();
        request.bind_input(0, rows(&buffer(&x), 0, count)).unwrap();
        request.infer().unwrap();
        let output = request.output(0).unwrap();
        assert_eq!(output.shape(), [count, 4]);
        let expected: Vec<f32> = x.iter().map(|value| value + 0.5).collect();
        assert_eq!(output.to_f32().unwrap(), expected);
    }
}

#[test]
fn an_output_is_written_in_place_into_a_part_of_a_buffer() {
    let Some(core) = core() else { return };
    let mut request = compile_add(core, &[100.0; 4]).request().unwrap();
    let cache = buffer(&[-1.0; 24]);
    for row in [1, 4] {
        request
            .bind_input(0, rows(&buffer(&[row as f32; 4]), 0, 1))
            .unwrap();
        request.bind_output(0, rows(&cache, row, 1)).unwrap();
        request.infer().unwrap();
    }
    let mut all = [0.0; 24];
    cache.read_f32(0, &mut all).unwrap();
    let expected = [-1.0, 101.0, -1.0, -1.0, 104.0, -1.0];
    assert!(
        all.chunks(4)
            .zip(expected)
            .all(|(row, value)| row == [value; 4]),
        "{all:?}"
    );
}

#[test]
fn an_output_with_room_to_spare_is_filled_from_its_start() {
    let Some(core) = core() else { return };
    let mut request = compile_add(core, &[0.0; 4]).request().unwrap();
    let target = buffer(&[-1.0; 16]);
    request.bind_output(0, rows(&target, 0, 4)).unwrap();
    for count in [2, 3, 1] {
        request
            .bind_input(0, rows(&buffer(&[count as f32; 12]), 0, count))
            .unwrap();
        request.infer().unwrap();
        assert_eq!(request.output(0).unwrap().shape(), [count, 4]);
    }
    let mut all = [0.0; 16];
    target.read_f32(0, &mut all).unwrap();
    let expected = [1.0, 3.0, 3.0, -1.0];
    assert!(
        all.chunks(4)
            .zip(expected)
            .all(|(row, value)| row == [value; 4]),
        "{all:?}"
    );
}

#[test]
fn an_output_without_room_is_an_error_and_nothing_beyond_it_is_written() {
    let Some(core) = core() else { return };
    let mut request = compile_add(core, &[0.0; 4]).request().unwrap();
    let target = buffer(&[-1.0; 16]);
    request
        .bind_input(0, rows(&buffer(&[5.0; 12]), 0, 3))
        .unwrap();
    request.bind_output(0, rows(&target, 1, 1)).unwrap();
    let error = request.infer().unwrap_err();
    assert!(
        matches!(
            error,
            OpenvinoError::Call {
                function: "ov_infer_request_infer",
                ..
            }
        ),
        "{error}"
    );
    let mut all = [0.0; 16];
    target.read_f32(0, &mut all).unwrap();
    assert!(
        all[..4].iter().chain(&all[8..]).all(|value| *value == -1.0),
        "{all:?}"
    );
    // The request can be used again.
    request.bind_output(0, rows(&target, 0, 3)).unwrap();
    request.infer().unwrap();
    target.read_f32(0, &mut all).unwrap();
    assert_eq!(all[..12], [5.0; 12]);
}

#[test]
fn a_bound_tensor_is_held_until_another_replaces_it() {
    let Some(core) = core() else { return };
    let mut request = compile_add(core, &[0.0; 4]).request().unwrap();
    let (first, second) = (buffer(&[1.0; 4]), buffer(&[2.0; 4]));
    let shared = Arc::new(rows(&first, 0, 1));
    request.bind_input(0, Arc::clone(&shared)).unwrap();
    drop(shared);
    assert_eq!(Arc::strong_count(&first), 2);
    request.bind_input(0, rows(&second, 0, 1)).unwrap();
    assert_eq!(
        (Arc::strong_count(&first), Arc::strong_count(&second)),
        (1, 2)
    );
    drop(request);
    assert_eq!(Arc::strong_count(&second), 1);
}

#[test]
fn the_same_view_bound_again_serves_what_is_there_now() {
    let Some(core) = core() else { return };
    let mut request = compile_add(core, &[1.0; 4]).request().unwrap();
    let (input, target) = (buffer(&[0.0; 8]), buffer(&[-1.0; 8]));
    for (value, first, count) in [
        (1.0, 0, 1),
        (2.0, 0, 1),
        (3.0, 0, 2),
        (4.0, 1, 1),
        (5.0, 0, 2),
    ] {
        input.write_f32(0, &[value; 8]).unwrap();
        for _ in 0..2 {
            request.bind_input(0, rows(&input, first, count)).unwrap();
            // With room to spare, so that OpenVINO changes the shape of the bound tensor.
            request.bind_output(0, rows(&target, 0, 2)).unwrap();
        }
        request.infer().unwrap();
        let mut all = [0.0; 8];
        target.read_f32(0, &mut all).unwrap();
        assert_eq!(all[..4 * count], [value + 1.0; 8][..4 * count]);
    }
    // One view of each is held, not every one that was offered.
    assert_eq!(
        (Arc::strong_count(&input), Arc::strong_count(&target)),
        (2, 2)
    );
}

/// Four numbers in read-only memory.
struct Constant([f32; 4]);

// SAFETY: a boxed `Constant` neither moves nor changes; the range is the field's.
#[allow(unsafe_code, reason = "test double of a read-only mapping")]
unsafe impl Memory for Constant {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }

    fn len(&self) -> usize {
        size_of_val(&self.0)
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }
}

#[test]
fn read_only_memory_serves_inputs_and_never_outputs() {
    let Some(core) = core() else { return };
    let mut request = compile_add(core, &[1.0; 4]).request().unwrap();
    let memory = Arc::new(Constant([1.0, 2.0, 3.0, 4.0]));
    let view = || Tensor::new(memory.clone(), 0, TensorType::F32, &[1, 4]).unwrap();
    fails(
        request.bind_output(0, view()),
        "output `y` is written, its memory is read-only",
    );
    request.bind_input(0, view()).unwrap();
    request.infer().unwrap();
    let output = request.output(0).unwrap();
    assert_eq!(output.to_f32().unwrap(), [2.0, 3.0, 4.0, 5.0]);
    fails(
        output.read_f32(&mut [0.0; 3]),
        "source has `4` elements, destination has room for `3`",
    );
}

#[test]
fn properties_take_effect_on_one_model_alone() {
    let Some(core) = core() else { return };
    let model = core
        .read_model(add().as_bytes(), Some(&bytes(&buffer(&[0.0; 4]))))
        .unwrap();
    let before = core
        .device_property("CPU", "INFERENCE_NUM_THREADS")
        .unwrap();
    for threads in ["1", "2"] {
        let properties = [
            ("INFERENCE_NUM_THREADS", threads),
            ("INFERENCE_PRECISION_HINT", "f32"),
            ("PERFORMANCE_HINT", "LATENCY"),
            ("NUM_STREAMS", "1"),
            ("ENABLE_CPU_PINNING", "NO"),
        ];
        let compiled = core.compile(&model, "CPU", &properties).unwrap();
        for (name, value) in properties {
            assert_eq!(compiled.property(name).unwrap(), value, "{name}");
        }
    }
    assert_eq!(
        core.device_property("CPU", "INFERENCE_NUM_THREADS")
            .unwrap(),
        before
    );
}

#[test]
fn what_was_exported_is_imported_and_held() {
    let Some(core) = core() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("add.blob");
    compile_add(core, &[1.0; 4]).export_to(&path).unwrap();
    let blob = std::fs::read(&path).unwrap();
    let memory = Arc::new(HostBuffer::new(blob.len()).unwrap());
    memory.write(0, &blob).unwrap();
    let compiled = core.import(&bytes(&memory), "CPU").unwrap();
    assert_eq!(Arc::strong_count(&memory), 2);
    let mut request = compiled.request().unwrap();
    request
        .bind_input(0, rows(&buffer(&[2.0; 4]), 0, 1))
        .unwrap();
    request.infer().unwrap();
    assert_eq!(request.output(0).unwrap().to_f32().unwrap(), [3.0; 4]);

    let nowhere = folder.path().join("missing/add.blob");
    let error = compiled.export_to(&nowhere).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot write `{}`", nowhere.display())
    );
}
