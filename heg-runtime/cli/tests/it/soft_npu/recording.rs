//! Recordings of a device, as its owner would send one: the keys that `heg-runtime/openvino/OPENVINO.md` names.

use heg_tests::soft_npu::{NPU_SOCS, NpuSoc, SoftNpu, soft_npu_or_skip};
use serde_json::Value;

use super::{bundle, heg_in};

fn recording(npu: NpuSoc) -> Value {
    let world = SoftNpu::new();
    let file = world.folder().join("npu.json");
    let platform = npu.platform.to_string();
    let arguments = [
        "doctor",
        bundle().to_str().unwrap(),
        "--soc",
        npu.soc,
        "--npu",
        "--record",
        file.to_str().unwrap(),
    ];
    let ran = heg_in(&world, bundle(), &arguments, &[("PLATFORM", &platform)]);
    ran.assert_well();
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Names of an object's fields, in order.
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

/// Takes out what differs from run to run: times, and the folder of a world.
fn lasting(mut recording: Value) -> Value {
    for kernel in recording["kernels"].as_array_mut().unwrap() {
        assert!(kernel["took_ms"].is_number() || kernel["refused"].is_string());
        kernel.as_object_mut().unwrap().remove("took_ms");
    }
    recording["npu"].as_object_mut().unwrap().remove("files");
    recording
}

#[test]
fn a_recording_has_the_device_and_no_text_of_a_user() {
    if !soft_npu_or_skip("recordings of a software NPU") {
        return;
    }
    for npu in NPU_SOCS {
        let found = recording(npu);
        assert_eq!(keys(&found), ["healthy", "kernels", "npu", "runs"]);
        assert_eq!(found["healthy"], true);
        assert_eq!(
            keys(&found["npu"]),
            [
                "blobs",
                "compiler",
                "driver",
                "files",
                "firmware",
                "known_bytes",
                "missing",
                "name",
                "platform",
                "refused_bytes",
                "stepping",
                "tiles",
                "weights",
            ]
        );
        assert_eq!(found["npu"]["platform"], npu.platform);
        assert_eq!(found["npu"]["refused_bytes"], 0, "{npu:?}");
        for kernel in found["kernels"].as_array().unwrap() {
            assert_eq!(
                keys(kernel),
                [
                    "device",
                    "kernel",
                    "layer",
                    "refused",
                    "role",
                    "shape",
                    "source",
                    "tolerance",
                    "took_ms",
                    "verdict",
                    "worst",
                ]
            );
        }
        // Two recordings of a machine can be held against each other.
        assert_eq!(lasting(found), lasting(recording(npu)), "{npu:?}");
    }
}
