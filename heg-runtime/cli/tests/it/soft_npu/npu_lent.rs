//! Memory is lent to an NPU once, and an NPU that does not answer costs a bounded time.

use heg_tests::soft_npu::{NPU_SOCS, NpuSoc, soft_npu_or_skip};

use super::{Ran, answer, bundle, expected, heg};

const SOC: &str = "core-ultra-7-258v";
const PROMPT: &str = "Hello";

fn answered(npu: NpuSoc) -> Ran {
    let platform = npu.platform.to_string();
    let arguments = answer(bundle(), npu.soc, PROMPT);
    let ran = heg(bundle(), &arguments, &[("PLATFORM", &platform)]);
    assert_eq!(ran.tokens(), expected(bundle(), PROMPT), "{npu:?}");
    ran
}

/// Calls with a word in the middle of an answer, between two of its runs.
fn while_running(ran: &Ran, word: &str) -> usize {
    let runs: Vec<u64> = ran.log.of("run").map(|run| run.at_us).collect();
    // A step of six layers and the head is 19 runs.
    let (first, last) = (runs[runs.len() - 60], runs[runs.len() - 1]);
    let calls = ran.log.of(word).map(|call| call.at_us);
    calls.filter(|at| (first..last).contains(at)).count()
}

#[test]
fn nothing_is_allocated_or_imported_while_an_answer_runs() {
    if !soft_npu_or_skip("memory that an answer takes on a software NPU") {
        return;
    }
    for npu in NPU_SOCS {
        let ran = answered(npu);
        for word in ["allocate", "import"] {
            assert_eq!(while_running(&ran, word), 0, "{word} {npu:?}");
        }
    }
}

#[test]
fn a_bundle_is_lent_once_and_its_weights_are_never_copied() {
    if !soft_npu_or_skip("a bundle lent to a software NPU") {
        return;
    }
    let whole = std::fs::metadata(bundle()).unwrap().len();
    for npu in NPU_SOCS.into_iter().filter(|npu| npu.platform != 3720) {
        let ran = answered(npu);
        assert_eq!(ran.log.count("allocate"), 0, "{npu:?}");
        let refused = ran.log.of("import").filter(|call| call.number("code") != 0);
        assert_eq!(refused.count(), 0, "{npu:?}");
        let lent = ran
            .log
            .of("import")
            .filter(|call| call.field("wc") == "true");
        let sizes: Vec<u64> = lent.map(|call| call.number("size")).collect();
        assert_eq!(sizes, [whole.next_multiple_of(4096)], "{npu:?}");
        let mut graphs = ran.log.of("graph");
        assert!(graphs.all(|graph| graph.field("backing") == "Lent"));
    }
}

/// Of all that is allocated one buffer holds the weights, whatever the number of forms and places.
#[test]
fn weights_are_copied_once_where_pages_cannot_be_lent() {
    if !soft_npu_or_skip("weights in memory of a software NPU") {
        return;
    }
    let ran = answered(NPU_SOCS[0]);
    let imported = ran.log.of("import").filter(|call| call.number("code") == 0);
    assert_eq!(imported.count(), 0);
    let opened = heg_artifacts::Bundle::open(bundle()).unwrap();
    let manifest = opened.manifest();
    let bytes = |id| {
        opened
            .section_range(id)
            .map(|at| at.end - at.start)
            .unwrap()
    };
    let values = |layer: &heg_artifacts::manifest::Layer| {
        let weights = layer.ffn.weights.iter();
        let values = weights.map(|id| bytes(manifest.weights[id.0 as usize].values));
        values.sum::<u64>()
    };
    let all: u64 = manifest.layers.iter().map(values).sum();
    let sizes: Vec<u64> = ran.log.of("allocate").map(|it| it.number("size")).collect();
    let holds_weights = sizes.iter().filter(|size| **size >= all);
    assert_eq!(holds_weights.count(), 1, "{sizes:?}");
}

/// Runs with a fault give the right tokens, and say that they went on without the device.
#[track_caller]
fn goes_on(faults: &str) {
    let settings = [("PLATFORM", "4000"), ("FAULTS", faults)];
    let ran = heg(bundle(), &answer(bundle(), SOC, PROMPT), &settings);
    assert_eq!(ran.status, Some(0), "{faults}: {}", ran.error);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        report["token_ids"],
        expected(bundle(), PROMPT),
        "{faults}: {}",
        ran.error
    );
    assert!(ran.log.count("FAULT") > 0, "{faults} never happened");
    let said = ["went on without a device", "the device cannot be used"];
    let of_npu = |line: &str| line.contains("NPU") && said.iter().any(|it| line.contains(it));
    assert!(ran.error.lines().any(of_npu), "{faults}: {}", ran.error);
}

#[test]
fn a_known_answer_that_never_ends_costs_seconds() {
    if !soft_npu_or_skip("a known answer of a software NPU that never ends") {
        return;
    }
    goes_on("hang@3");
}

#[test]
fn a_kernel_that_never_ends_costs_seconds_and_no_answer() {
    if !soft_npu_or_skip("a kernel of a software NPU that never ends") {
        return;
    }
    let runs = answered(NPU_SOCS[1]).log.count("run");
    goes_on(&format!("hang@{}", runs - 30));
}

#[test]
fn a_device_that_is_lost_for_good_in_an_answer_leaves_the_rest_to_the_cpu() {
    if !soft_npu_or_skip("a software NPU that is lost for good") {
        return;
    }
    let runs = answered(NPU_SOCS[1]).log.count("run");
    goes_on(&format!("lost@{}+", runs - 30));
    goes_on(&format!("abort@{}+", runs - 30));
}
