//! NPU blobs in a bundle: imported from the mapping if they fit, skipped with a reason if they do not, and detected
//! if they are damaged or compute something else.
//!
//! Blobs here are exported by the CPU plugin, and the CPU device is taken for an NPU: import, answers and ladder are
//! the same as on the device; only the device is not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{Blob, Compatibility};
use heg_openvino::{Core, HostBuffer, Tensor, TensorType};
use heg_runtime::exec::Loader;
use heg_runtime::{DeviceFacts, NpuFacts, summary};
use heg_spec::{DeviceClass, Group, NpuPlatform};
use heg_tests::roles::{changed, compile, loader, rewrite, roles, run};
use heg_tests::{Workbench, openvino_or_skip};

const ACCELERATORS: [&str; 2] = ["Npu", "Igpu"];

/// Compiles an IR of the NPU on the CPU and exports it: a blob as OpenVINO writes them. Such IRs have only literals
/// as constants.
fn export(core: &Core, ir: &str, literals: &[u8], folder: &Path) -> Vec<u8> {
    let buffer = HostBuffer::new(literals.len()).unwrap();
    buffer.write(0, literals).unwrap();
    let literals = Tensor::new(Arc::new(buffer), 0, TensorType::U8, &[literals.len()]).unwrap();
    let ir = ir.replace("offset=\"@c+", "offset=\"");
    let model = core.read_model(ir.as_bytes(), Some(&literals)).unwrap();
    let properties = [("INFERENCE_PRECISION_HINT", "f32"), ("NUM_STREAMS", "1")];
    let path = folder.join("exported");
    core.compile(&model, "CPU", &properties)
        .unwrap()
        .export_to(&path)
        .unwrap();
    std::fs::read(path).unwrap()
}

/// Gives every NPU variant of a group a blob that `make` derives from its IR.
fn with_blobs(
    workbench: &Workbench,
    bundle: &Path,
    (name, group): (&str, Group),
    make: impl Fn(&Core, &str, &[u8]) -> Vec<u8>,
) -> PathBuf {
    let core = Core::load().unwrap();
    rewrite(workbench, bundle, name, |manifest, store| {
        let opened = Bundle::open(bundle).unwrap();
        let literals = opened.section(manifest.literals).unwrap();
        let kernels = manifest.kernels.iter_mut();
        for kernel in kernels.filter(|kernel| kernel.group == group) {
            let variants = kernel.variants.iter_mut();
            for variant in variants.filter(|variant| variant.device == DeviceClass::Npu) {
                let ir = String::from_utf8(opened.section(variant.ir).unwrap().to_vec()).unwrap();
                let section = store.put_bytes(&make(&core, &ir, literals)).unwrap();
                manifest.sections.push(section);
                variant.blobs.push(Blob {
                    platform: NpuPlatform::NPU3720,
                    compatibility: Compatibility {
                        compiler: "8.4".to_owned(),
                        elf: "1.2.0".to_owned(),
                        tiles: Some(2),
                        stepping: None,
                        text: "compiler=8.4;npu=3720;t=2;elf=1.2.0".to_owned(),
                    },
                    section: section.id,
                });
            }
        }
        manifest.sections.sort_by_key(|section| section.id);
        manifest.sections.dedup();
    })
}

/// Returns a loader that takes the CPU in the NPU's role for an NPU of this platform.
fn pretending(bundle: &Path, platform: u32, classes: &[&str]) -> Loader {
    let loader = loader(bundle, &roles(classes));
    let pretend = |facts: &DeviceFacts| {
        let mut facts = facts.clone();
        facts.npu = (facts.role == DeviceClass::Npu).then(|| NpuFacts {
            platform: Some(NpuPlatform::new(platform)),
            tiles: Some(2),
            ..NpuFacts::default()
        });
        facts
    };
    let devices = loader.devices().iter().map(pretend).collect();
    loader.with_devices(devices)
}

#[test]
fn blobs_are_imported_and_go_down_when_they_do_not_fit_or_are_wrong() {
    if !openvino_or_skip("blobs") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = compile(&workbench, |_| ());
    let (expected, _) = run(loader(&bundle, &roles(&ACCELERATORS)));
    let folder = workbench.folder().to_owned();
    let right = with_blobs(
        &workbench,
        &bundle,
        ("right", Group::Ffn),
        |core, ir, literals| export(core, ir, literals, &folder),
    );
    // It fits, so there is no descent. The imported blob has lost its precision hint, so its tokens differ.
    let (_, descents) = run(pretending(&right, 3720, &ACCELERATORS));
    assert!(descents.is_empty(), "{:?}", summary(&descents));
    let check = |loader: Loader, tokens: &[u32], line: &str| {
        let (found, descents) = run(loader);
        assert_eq!(found, tokens, "{line}");
        let lines = summary(&descents);
        assert!(lines.iter().any(|found| found.contains(line)), "{lines:?}");
    };
    let other = "ffn 8, ffn 32: CPU as npu blob 3720 -> CPU as npu IR: the blob is for NPU 3720, the device is NPU 4000";
    check(pretending(&right, 4000, &ACCELERATORS), &expected, other);
    let no_npu = "`CPU` plays the NPU's role: blobs are for NPU devices";
    check(loader(&right, &roles(&ACCELERATORS)), &expected, no_npu);
    // No valid blob at all, and one of something else, as the compiler might have written them.
    let garbage = with_blobs(&workbench, &bundle, ("garbage", Group::Ffn), |_, _, _| {
        vec![7; 5000]
    });
    check(
        pretending(&garbage, 3720, &ACCELERATORS),
        &expected,
        "CPU as npu blob 3720 -> CPU as npu IR: refused: import a blob",
    );
    let wrong = with_blobs(
        &workbench,
        &bundle,
        ("wrong", Group::Ffn),
        |core, ir, literals| {
            let ir = ir.replace(
                "type=\"Swish\" version=\"opset4\"",
                "type=\"Sigmoid\" version=\"opset1\"",
            );
            export(core, &ir, literals, &folder)
        },
    );
    check(
        pretending(&wrong, 3720, &ACCELERATORS),
        &expected,
        "CPU as npu blob 3720 -> CPU as npu IR: quarantined",
    );
}

#[test]
fn a_blob_damaged_in_memory_is_found() {
    if !openvino_or_skip("a damaged blob") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = compile(&workbench, |_| ());
    let folder = workbench.folder().to_owned();
    // Attention: its factor is a number that the plugin writes into its blobs unchanged but for the last bits.
    let blobs = with_blobs(
        &workbench,
        &bundle,
        ("mha", Group::Mha),
        |core, ir, literals| export(core, ir, literals, &folder),
    );
    let soc = ["Npu", "Cpu"];
    let (expected, descents) = run(pretending(&blobs, 3720, &soc));
    assert!(descents.is_empty(), "{:?}", summary(&descents));
    let opened = Bundle::open(&blobs).unwrap();
    let variants = opened
        .manifest()
        .kernels
        .iter()
        .flat_map(|kernel| &kernel.variants);
    for blob in variants.flat_map(|variant| &variant.blobs) {
        let factor = changed(&blobs, blob.section, |bytes| {
            let factor = half::f16::from_f32(1.0 / 32.0_f32.sqrt()).to_f32();
            let factor = factor.to_le_bytes();
            let at = bytes.windows(4).position(|window| window == factor);
            bytes[at.unwrap()..][..4].copy_from_slice(&3.0_f32.to_le_bytes());
        });
        let unreadable = changed(&blobs, blob.section, |bytes| {
            let from = bytes.len() - 64;
            bytes[from..].fill(0x41);
        });
        let damages = [
            (
                factor,
                "-> CPU as npu blob 3720: its bytes in memory are damaged",
            ),
            (
                unreadable,
                "-> CPU as npu IR: refused: import a blob of `mha`",
            ),
        ];
        for (memory, line) in damages {
            let (tokens, descents) = run(pretending(&blobs, 3720, &soc).with_memory(memory));
            assert_eq!(tokens, expected);
            let lines = summary(&descents);
            assert!(lines.len() == 1 && lines[0].contains(line), "{lines:?}");
        }
    }
}
