//! Tests of calls before OpenVINO is loaded, in a test binary in which nothing loads it.

use std::sync::Arc;

use heg_openvino::{HostBuffer, Tensor, TensorType};

#[test]
fn a_tensor_needs_openvino() {
    let memory = Arc::new(HostBuffer::new(16).unwrap());
    let error = Tensor::new(memory, 0, TensorType::F32, &[4]).unwrap_err();
    assert_eq!(error.to_string(), "OpenVINO is not loaded yet");
}
