//! Devices that compute wrongly while they serve. One run without a result is seen at once and runs again; a device that
//! goes on like that is given up, and so is one whose known answers become wrong, with all that it gave since they were
//! right. (One run of wrong numbers nobody sees: `heg_exec`'s `recheck` says why.)

use std::thread;
use std::time::{Duration, Instant};

use heg_tests::soft_npu::{InSoftNpu, NPU_SOCS, NpuSoc, SoftNpu, soft_npu_or_skip};

use super::server::{CLEAR, CLEAR_ANSWER, Server};
use super::{Ran, answer, bundle, expected, heg, heg_in};

const PROMPT: &str = "Hello";

/// Runs that end well and give no result.
const EMPTY: [&str; 3] = ["wrong", "nan", "unwritten"];

fn run(npu: NpuSoc, faults: &str) -> Ran {
    let platform = npu.platform.to_string();
    let settings = [("PLATFORM", platform.as_str()), ("FAULTS", faults)];
    heg(bundle(), &answer(bundle(), npu.soc, PROMPT), &settings)
}

/// Lines on what was passed over, but for the GPU and its programs, which are not there.
fn said(ran: &Ran) -> Vec<&str> {
    let lines = ran.error.lines().filter(|line| line.starts_with("note: "));
    let of_gpu = |line: &str| line.contains("GPU ->") || line.contains("GPU program ->");
    lines.filter(|line| !of_gpu(line)).collect()
}

#[test]
fn a_run_without_a_result_runs_again() {
    if !soft_npu_or_skip("a run of a software NPU without a result") {
        return;
    }
    let expected = expected(bundle(), PROMPT);
    for (npu, fault) in NPU_SOCS.into_iter().zip(EMPTY) {
        let runs = run(npu, "").log.count("run");
        // A step of six layers and the head is 19 runs: each kernel has its turn.
        for before in [22, 21, 20, 19] {
            let faults = format!("{fault}@{}", runs - before);
            let ran = run(npu, &faults);
            assert_eq!(ran.tokens(), expected, "{npu:?} {faults}");
            assert_eq!(said(&ran), [""; 0], "{npu:?} {faults}");
            assert_eq!(ran.log.count("FAULT"), 1, "{npu:?} {faults}");
        }
    }
}

#[test]
fn a_device_that_gives_no_results_any_more_leaves_the_rest_to_the_cpu() {
    if !soft_npu_or_skip("a software NPU that gives no results any more") {
        return;
    }
    let expected = expected(bundle(), PROMPT);
    for (npu, fault) in NPU_SOCS.into_iter().zip(EMPTY) {
        let runs = run(npu, "").log.count("run");
        let faults = format!("{fault}@{}+", runs - 30);
        let ran = run(npu, &faults);
        assert_eq!(ran.tokens(), expected, "{npu:?} {faults}: {}", ran.error);
        let said = said(&ran);
        let why = |line: &&str| line.contains("expected numbers") && line.contains("NPU");
        assert!(said.iter().any(why), "{npu:?} {faults}: {said:?}");
    }
}

/// The test of a bundle's first start is remembered, so the second start has only the questions before its first launch.
#[test]
fn a_device_that_became_wrong_between_two_starts_leaves_the_cpu() {
    if !soft_npu_or_skip("a software NPU that became wrong between two starts") {
        return;
    }
    let expected = expected(bundle(), PROMPT);
    for npu in NPU_SOCS {
        let world = SoftNpu::new();
        let platform = npu.platform.to_string();
        let start = |faults: &str| {
            let settings = [("PLATFORM", platform.as_str()), ("FAULTS", faults)];
            heg_in(
                &world,
                bundle(),
                &answer(bundle(), npu.soc, PROMPT),
                &settings,
            )
        };
        start("").assert_well();
        let ran = start("negated");
        assert_eq!(ran.tokens(), expected, "{npu:?}: {}", ran.error);
        let why = "computes wrongly since it was tested";
        assert!(ran.error.contains(why), "{npu:?}: {}", ran.error);
        // What is remembered of a device is that of its tests.
        start("").assert_well();
    }
}

/// A server's device that became wrong is found out while nobody asks, and the CPU answers from then on.
#[test]
fn a_device_that_becomes_wrong_is_found_out_while_it_rests() {
    if !soft_npu_or_skip("a software NPU that becomes wrong while it serves") {
        return;
    }
    let world = SoftNpu::new();
    let npu = NPU_SOCS[1];
    let server = Server::start(&world, npu.soc, &[], &[("PLATFORM", "4000")]);
    let text = |server: &Server| server.ask(CLEAR, 12, "reactive");
    assert_eq!(text(&server), CLEAR_ANSWER);
    InSoftNpu::new(world.folder()).plan("negated");
    // What is answered before it is found out may be wrong.
    let _ = server.try_ask("Hello", 1, "reactive");
    // A lane rests after 0.25 s.
    let begin = Instant::now();
    while !server.health().contains("degraded") {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{}",
            server.health()
        );
        thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(text(&server), CLEAR_ANSWER);
    let after = world.log().count("run");
    assert_eq!(text(&server), CLEAR_ANSWER);
    assert_eq!(world.log().count("run"), after, "the device is not used");
    server.end();
}
