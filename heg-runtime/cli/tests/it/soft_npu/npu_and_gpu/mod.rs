//! An NPU beside a GPU that runs CPU programs: the shipped SoCs with an NPU, on the software NPU and on lavapipe. Rows that
//! both see are the NPU's, in f16.

mod lanes;
mod losses;
mod mechanisms;
mod switch;

use heg_gpu::{GpuDevice, GpuOptions};
use heg_tests::skipped;
use heg_tests::soft_npu::{NPU_SOCS, SoftNpu, soft_npu_or_skip};

use super::{answer, bundle, expected, heg_in};

/// The GPU in software that Debian has.
const GPU: &str = "lavapipe";

/// Whether there are an NPU and a GPU, both in software; if not, the reason is noted, once for each test.
fn npu_and_gpu_or_skip(test: &str) -> bool {
    let options = GpuOptions {
        name: Some(GPU.to_owned()),
        ..GpuOptions::default()
    };
    match GpuDevice::find(&options) {
        Ok(_) => soft_npu_or_skip(test),
        Err(error) => {
            let required = std::env::var_os("HEG_REQUIRE_GPU").is_some();
            assert!(!required, "{test}: {error}");
            skipped(&format!("{test}: {error}"));
            false
        }
    }
}

/// Token-wise kernels run on the NPU and attention on the GPU, over the same rows; nothing goes down the ladder.
#[test]
fn gpu_programs_play_the_igpu() {
    if !npu_and_gpu_or_skip("GPU programs beside a software NPU") {
        return;
    }
    for npu in NPU_SOCS {
        let world = SoftNpu::new().beside_gpu(GPU);
        let platform = npu.platform.to_string();
        for prompt in ["Hello", "Will it rain in Oslo tomorrow?"] {
            let arguments = answer(bundle(), npu.soc, prompt);
            let ran = heg_in(&world, bundle(), &arguments, &[("PLATFORM", &platform)]);
            assert_eq!(ran.tokens(), expected(bundle(), prompt), "{npu:?}");
            let descents = &ran.json()["descents"];
            assert_eq!(*descents, serde_json::json!([]), "{npu:?}");
            let of = |kernel| {
                let mut runs = ran.log.of("run");
                runs.any(|run| run.field("kernel") == kernel)
            };
            assert!(
                of("qkv") && of("ffn") && of("head") && !of("mha"),
                "{npu:?}"
            );
        }
    }
}
