//! Our environment variables: each appears only in the files of this list, and is documented.

use super::source::File;

/// Returns a finding for each variable that appears in another file, or that no document describes.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files
        .iter()
        .filter(|file| file.is_rust() && file.path != OWN_PATH)
    {
        for (index, line) in file.text.lines().enumerate() {
            for name in named(line).filter(|name| !name.contains("_TEST_")) {
                let known = VARIABLES.iter().find(|(variable, _)| *variable == name);
                let is_owner =
                    known.is_some_and(|(_, owners)| owners.contains(&file.path.as_str()));
                if !is_owner {
                    let place = format!("{}:{}", file.path, index + 1);
                    findings.push(format!(
                        "{place}: `{name}` is not declared for this file in {OWN_PATH}"
                    ));
                }
            }
        }
    }
    let described = |name: &str| {
        let mut documents = files
            .iter()
            .filter(|file| DOCUMENTS.contains(&file.path.as_str()));
        documents.any(|document| document.text.contains(&format!("`{name}")))
    };
    let missing = VARIABLES.iter().filter(|(name, _)| !described(name));
    findings
        .extend(missing.map(|(name, _)| format!("{}:1: `{name}` is not described", DOCUMENTS[0])));
    findings
}

/// The variables in string literals of `line`.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |text: &&str| {
        let rest = text.strip_prefix("HEG_").unwrap_or_default();
        !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    line.split('"').skip(1).step_by(2).filter(is_name)
}

/// Each variable with the files that may name it. A variable with `_TEST_` is passed by a test to itself in another
/// process, and is its own.
const VARIABLES: [(&str, &[&str]); 26] = [
    (
        "HEG_BLESS",
        &[
            "artifacts/tests/it/fixture.rs",
            "heg-runtime/capi/tests/it/header.rs",
        ],
    ),
    ("HEG_BUNDLES", &["heg-compiler/cli/src/output.rs"]),
    (
        "HEG_CACHE_DIR",
        &[
            "heg-runtime/src/verified.rs",
            "heg-runtime/capi/tests/it/c_program.rs",
            "heg-runtime/capi/tests/it/wheel.rs",
            "heg-runtime/cli/commands/src/ship/known_answers.rs",
            "heg-runtime/cli/tests/it/command.rs",
            "heg-runtime/cli/tests/it/doctor_gpu.rs",
            "heg-runtime/cli/tests/it/machine.rs",
            "heg-runtime/cli/tests/it/pressure.rs",
            "heg-runtime/cli/tests/it/registry.rs",
            "heg-runtime/cli/tests/it/soft_npu/mod.rs",
            "heg-runtime/cli/tests/it/state.rs",
            "heg-runtime/cli/tests/it/texts.rs",
            "heg-runtime/cli/tests/it/wine.rs",
            "xtask/src/workspace.rs",
            "xtask/lab/src/bench_ship/world.rs",
        ],
    ),
    ("HEG_DIST", &["heg-runtime/cli/tests/it/bare.rs"]),
    (
        "HEG_FULL",
        &[
            "heg-runtime/cli/tests/it/soft_npu/faults.rs",
            "heg-runtime/gpu/tests/it/attention.rs",
            "tests/it/answers.rs",
            "tests/it/bits/mod.rs",
            "tests/it/engine.rs",
            "tests/it/gguf.rs",
            "tests/it/gpu_bits.rs",
            "tests/it/pair_gpu.rs",
            "tests/it/speculation/mod.rs",
            "tests/faults/drafts.rs",
            "tests/faults/flash.rs",
            "tests/faults/kernels.rs",
            "tests/faults/npu/agreement.rs",
            "tests/faults/npu/sweep.rs",
            "tests/faults/switching.rs",
            "tests/faults/vulkan/loading.rs",
            "tests/it/trained.rs",
        ],
    ),
    ("HEG_GPU_WORLDS", &["tests/faults/vulkan/worlds.rs"]),
    ("HEG_MODELS", &["tests/src/questions.rs"]),
    ("HEG_NPU_WORLDS", &["tests/faults/npu/worlds.rs"]),
    ("HEG_PEERS_VENV", &["xtask/lab/src/bench_peers/genai.rs"]),
    ("HEG_REQUIRE_BROWSER", &["tests/serve/page.rs"]),
    (
        "HEG_REQUIRE_GPU",
        &[
            "heg-runtime/cli/tests/it/doctor_gpu.rs",
            "heg-runtime/cli/tests/it/machine.rs",
            "heg-runtime/cli/tests/it/soft_npu/npu_and_gpu/mod.rs",
            "heg-runtime/gpu/tests/it/device.rs",
            "tests/faults/vulkan/mod.rs",
            "tests/it/gpu.rs",
            "tests/it/gpu_lanes.rs",
        ],
    ),
    (
        "HEG_REQUIRE_REGISTRY",
        &[
            "artifacts/ship/tests/it/real.rs",
            "heg-runtime/cli/tests/it/registry.rs",
        ],
    ),
    (
        "HEG_WINDOWS",
        &["heg-runtime/cli/tests/it/wine.rs", "xtask/src/windows.rs"],
    ),
    (
        "HEG_REQUIRE_CLIENTS",
        &[
            "heg-compiler/bucket/tests/it/moto.rs",
            "tests/serve/clients.rs",
            "xtask/src/test/mod.rs",
        ],
    ),
    (
        "HEG_REQUIRE_NPU",
        &[
            "heg-compiler/src/npu/real_tests.rs",
            "tests/src/soft_npu.rs",
            "xtask/src/test/mod.rs",
        ],
    ),
    (
        "HEG_REQUIRE_OPENVINO",
        &[
            "heg-compiler/src/lower/ops_tests/bench.rs",
            "heg-runtime/openvino/tests/it/tiny_models/mod.rs",
            "heg-runtime/exec/src/loader.rs",
            "tests/src/lib.rs",
            "xtask/src/test/mod.rs",
        ],
    ),
    ("HEG_SHORT_PROMPTS", &["tests/faults/many.rs"]),
    (
        "HEG_SKIPPED",
        &[
            "artifacts/ship/tests/it/bundles.rs",
            "heg-runtime/gpu/tests/it/device.rs",
            "tests/src/lib.rs",
            "xtask/src/test/mod.rs",
        ],
    ),
    ("HEG_SOAK_MINUTES", &["tests/faults/soak.rs"]),
    (
        "HEG_STATE_WORLDS",
        &["heg-runtime/state/tests/it/worlds.rs"],
    ),
    (
        "HEG_TRACES",
        &["heg-runtime/sim/tests/scheduler/action_logs.rs"],
    ),
    (
        "HEG_STORE",
        &[
            "heg-runtime/cli/commands/src/ship/mod.rs",
            "heg-runtime/cli/tests/it/registry.rs",
            "heg-runtime/cli/tests/it/soft_npu/mod.rs",
            "heg-runtime/cli/tests/it/wine.rs",
            "xtask/lab/src/bench_ship/world.rs",
        ],
    ),
    ("HEG_TOKEN", &["heg-runtime/cli/commands/src/serve.rs"]),
    (
        "HEG_VK_AS",
        &["heg-runtime/gpu/src/device.rs", "tests/it/pair_gpu.rs"],
    ),
    (
        "HEG_VK_DRIVER",
        &["heg-runtime/gpu/src/device.rs", "tests/src/soft_npu.rs"],
    ),
    ("HEG_WORLDS", &["heg-runtime/sim/tests/scheduler/worlds.rs"]),
];

/// The documents that may describe a variable.
const DOCUMENTS: [&str; 3] = ["CONTRIBUTING.md", "README.md", "ARCHITECTURE.md"];

const OWN_PATH: &str = "xtask/src/tidy/variables.rs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_literals() {
        let line = r#"env::var("HEG_TOKEN").or("see HEG_FULL").or("HEG_")"#;
        assert_eq!(named(line).collect::<Vec<_>>(), ["HEG_TOKEN"]);
    }

    #[test]
    fn a_variable_has_its_files_and_a_description() {
        let file = |path: &str, text: String| File {
            path: path.to_owned(),
            text,
        };
        let described: Vec<String> = VARIABLES
            .iter()
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        let document = file("CONTRIBUTING.md", described.join(" "));
        let own = file(
            "heg-runtime/cli/commands/src/serve.rs",
            "\"HEG_TOKEN\" \"HEG_TEST_X\"".to_owned(),
        );
        let other = file("a/src/b.rs", "x\n\"HEG_TOKEN\" \"HEG_OTHER\"\n".to_owned());
        assert_eq!(check(&[document, own, other]).len(), 2);
        assert_eq!(check(&[]).len(), VARIABLES.len());
    }
}
