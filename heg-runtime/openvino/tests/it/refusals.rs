//! The refusals of the crate and of OpenVINO, and their messages.
//!
//! Skipped, and reported, if OpenVINO is not installed.

use std::sync::Arc;

use crate::tiny_models::{add, buffer, bytes, core, rows};
use heg_openvino::{Core, HostBuffer, InferRequest, OpenvinoError, RANK_MAX, Tensor, TensorType};

fn add_request(core: &Core) -> InferRequest {
    let model = core
        .read_model(add().as_bytes(), Some(&bytes(&buffer(&[0.0; 4]))))
        .unwrap();
    core.compile(&model, "CPU", &[("INFERENCE_PRECISION_HINT", "f32")])
        .unwrap()
        .request()
        .unwrap()
}

fn fails<T>(result: Result<T, OpenvinoError>, text: &str) {
    let error = result.err().expect("an error").to_string();
    assert_eq!(error, text);
}

#[test]
fn tensors_that_do_not_fit_a_port_are_refused() {
    let Some(core) = core() else { return };
    let mut request = add_request(core);
    let memory = buffer(&[0.0; 64]);
    let view = |element, shape: &[usize]| Tensor::new(memory.clone(), 0, element, shape).unwrap();
    let shape = "port `x` has shape `[?,4]`, the tensor has `[2, 3]`";
    fails(request.bind_input(0, view(TensorType::F32, &[2, 3])), shape);
    let rank = "port `y` has shape `[?,4]`, the tensor has `[4]`";
    fails(request.bind_output(0, view(TensorType::F32, &[4])), rank);
    let element = "`x` has elements of `f32`, the tensor has `i32`";
    fails(
        request.bind_input(0, view(TensorType::I32, &[2, 4])),
        element,
    );
    let missing = "no input `1`, the model has `1`";
    fails(
        request.bind_input(1, view(TensorType::F32, &[2, 4])),
        missing,
    );
    let missing = "no output `2`, the model has `1`";
    fails(
        request.bind_output(2, view(TensorType::F32, &[2, 4])),
        missing,
    );
    fails(request.output(3), "no output `3`, the model has `1`");
}

#[test]
fn views_that_are_not_sound_are_refused() {
    if core().is_none() {
        return;
    }
    let memory = Arc::new(HostBuffer::new(64).unwrap());
    let view =
        |offset, element, shape: &[usize]| Tensor::new(memory.clone(), offset, element, shape);
    assert_eq!(view(0, TensorType::F32, &[4, 4]).unwrap().bytes(), 64);
    assert_eq!(view(64, TensorType::F32, &[0, 4]).unwrap().shape(), [0, 4]);
    fails(
        view(4, TensorType::F32, &[4, 4]),
        "`64` bytes at offset `4` do not fit into memory of `64` bytes",
    );
    fails(
        view(usize::MAX - 3, TensorType::I32, &[1]),
        "`4` bytes at offset `18446744073709551612` do not fit into memory of `64` bytes",
    );
    fails(
        view(2, TensorType::F32, &[1]),
        "view at offset `2` is not aligned to the `4` bytes of its elements",
    );
    fails(
        view(0, TensorType::I8, &[1; RANK_MAX + 1]),
        "tensor has `9` dimensions, at most `8` are supported",
    );
}

#[test]
fn bad_models_devices_and_properties_are_errors() {
    let Some(core) = core() else { return };
    let weights = bytes(&buffer(&[0.0; 4]));
    let model = core.read_model(add().as_bytes(), Some(&weights)).unwrap();
    let call = |result: Result<(), OpenvinoError>, expected: &str| match result {
        Err(OpenvinoError::Call { function, .. }) => assert_eq!(function, expected),
        other => panic!("{other:?}"),
    };
    let read = "ov_core_read_model_from_memory_buffer";
    call(core.read_model(b"<net/>", None).map(drop), read);
    call(core.read_model(b"", None).map(drop), read);
    call(core.read_model(add().as_bytes(), None).map(drop), read);
    let short = Tensor::new(buffer(&[0.0; 4]), 0, TensorType::U8, &[8]).unwrap();
    call(
        core.read_model(add().as_bytes(), Some(&short)).map(drop),
        read,
    );
    let compile = "ov_core_compile_model_props";
    call(
        core.compile(&model, "NO_SUCH_DEVICE", &[]).map(drop),
        compile,
    );
    call(
        core.compile(&model, "CPU", &[("NO_SUCH_PROPERTY", "1")])
            .map(drop),
        compile,
    );
    let floats = rows(&buffer(&[0.0; 4]), 0, 1);
    fails(
        core.read_model(add().as_bytes(), Some(&floats)),
        "`weights` has elements of `u8`, the tensor has `f32`",
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_has_one_openvino() {
    let Some(_) = core() else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libopenvino_c.so");
    std::fs::write(&copy, b"").unwrap();
    let error = Core::load_from(folder.path()).unwrap_err().to_string();
    assert!(
        error.starts_with("OpenVINO is already loaded from `"),
        "{error}"
    );
    assert!(
        error.ends_with(&format!("cannot load it from `{}` as well", copy.display())),
        "{error}"
    );
}
