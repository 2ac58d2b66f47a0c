//! Faults of driver and device: each ends in bounded time, with the right answer, and with nothing left on the device.
//!
//! Calls are counted in a run without faults, so that a fault hits where it is meant to however the runtime binds.

use std::sync::OnceLock;

use heg_tests::soft_npu::{DeviceLog, soft_npu_or_skip};
use serde_json::Value;

use super::{Ran, answer, bundle, expected, heg};

const SOC: &str = "core-ultra-7-258v";
const PROMPT: &str = "Hello";

/// Tokens that a CPU gives, and what a run without faults asks of the device.
fn calm() -> &'static (Value, DeviceLog) {
    static CALM: OnceLock<(Value, DeviceLog)> = OnceLock::new();
    CALM.get_or_init(|| {
        let ran = run("");
        ran.assert_well();
        (expected(bundle(), PROMPT), ran.log)
    })
}

fn run(faults: &str) -> Ran {
    run_on(SOC, "4000", faults)
}

fn run_on(soc: &str, platform: &str, faults: &str) -> Ran {
    let settings = [("PLATFORM", platform), ("FAULTS", faults)];
    heg(bundle(), &answer(bundle(), soc, PROMPT), &settings)
}

/// Number of a run in the middle of the answer: all but those of known answers.
fn in_answer() -> usize {
    let runs = calm().1.count("run");
    // A step of six layers and the head is 19 runs.
    runs - 30
}

/// The course of a run with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// As if nothing had been.
    Unseen,
    /// With a step down, which it says: part of the message.
    Down(&'static str),
    /// Either way.
    On,
}

/// Runs with faults, which must happen, give the right tokens and leave nothing.
#[track_caller]
fn check(faults: &str, goes: Goes) -> Ran {
    check_run(run(faults), faults, goes)
}

#[track_caller]
fn check_run(ran: Ran, faults: &str, goes: Goes) -> Ran {
    let (expected, _) = calm();
    assert_eq!(ran.tokens(), *expected, "{faults}: {}", ran.error);
    assert!(ran.log.count("FAULT") > 0, "{faults} never happened");
    // What is said of the GPU, which is not there, is not of the fault.
    let is_of_gpu = |line: &&str| line.contains("GPU ->") || line.contains("GPU program ->");
    let of_npu = ran.error.lines().filter(|line| !is_of_gpu(line));
    let said: Vec<&str> = of_npu.filter(|line| line.starts_with("note: ")).collect();
    match goes {
        Goes::On => {}
        Goes::Unseen => assert_eq!(said, Vec::<&str>::new(), "{faults}"),
        Goes::Down(why) => {
            let found = said.iter().any(|line| line.contains(why));
            assert!(found, "{faults}: {}", ran.error);
        }
    }
    ran
}

#[test]
fn a_driver_that_does_not_start_leaves_the_cpu() {
    if !soft_npu_or_skip("a driver that does not start") {
        return;
    }
    let ran = check("init", Goes::Down("the device cannot be used"));
    assert_eq!(ran.log.count("run"), 0);
}

#[test]
fn a_blob_that_is_not_taken_is_passed_over() {
    if !soft_npu_or_skip("a blob that is not taken") {
        return;
    }
    for fault in ["create", "create-binary", "create-memory"] {
        let one = check(
            &format!("{fault}@2"),
            Goes::Down("refused: import a blob of"),
        );
        assert!(one.log.count("run") > 0, "{fault}");
        // The driver has no compiler: that its IR is refused too is no cause of its own.
        assert!(!one.error.contains("NPU IR ->"), "{}", one.error);
        assert!(
            one.error
                .contains("; and its IR is refused too: compile kernel")
        );
    }
    let all = check("create", Goes::Down("refused: import a blob of"));
    assert_eq!(all.log.count("run"), 0);
}

/// The plugin does not look how that ended: the first run of the graph shows it.
#[test]
fn a_blob_that_the_device_has_no_room_for_is_passed_over() {
    if !soft_npu_or_skip("a blob without room on the device") {
        return;
    }
    check("initialize@2", Goes::Down("refused: run a lone kernel"));
}

/// At the n-th allocation of a run, for some n of all, or with `HEG_FULL` for each: a known answer passes its form over,
/// and what an answer needs is asked for again. On platform 3720, since a newer one is lent memory and allocates none.
#[test]
fn memory_that_ends_passes_over_what_wanted_it() {
    if !soft_npu_or_skip("memory of the device that ends") {
        return;
    }
    let old = |faults: &str| run_on("core-ultra-5-125h", "3720", faults);
    let all = old("").log.count("allocate");
    let step = match std::env::var_os("HEG_FULL") {
        Some(_) => 1,
        None => all.div_ceil(6).max(1),
    };
    for call in (1..=all).step_by(step) {
        let fault = format!("memory@{call}");
        check_run(old(&fault), &fault, Goes::On);
    }
    let always = check_run(old("memory"), "memory", Goes::Down("refused: "));
    assert_eq!(always.log.count("run"), 0);
}

#[test]
fn pages_that_cannot_be_imported_are_copied() {
    if !soft_npu_or_skip("pages that cannot be imported") {
        return;
    }
    check("import@1", Goes::Unseen);
    check("import", Goes::Unseen);
}

#[test]
fn a_queue_that_is_not_made_passes_over_its_kernel() {
    if !soft_npu_or_skip("a queue that is not made") {
        return;
    }
    check("queue@2", Goes::Down("zeCommandQueueCreate"));
}

#[test]
fn work_that_is_not_taken_once_is_tried_again() {
    if !soft_npu_or_skip("work that is not taken") {
        return;
    }
    check(&format!("submit@{}", in_answer()), Goes::Unseen);
    if calm().1.count("update") > 0 {
        check(
            &format!("update@{}", calm().1.count("update") - 5),
            Goes::Unseen,
        );
    }
}

#[test]
fn a_device_that_is_lost_once_is_tried_again() {
    if !soft_npu_or_skip("a device that is lost once") {
        return;
    }
    check(&format!("lost@{}", in_answer()), Goes::Unseen);
    check("lost@3", Goes::Down("refused: run a lone kernel"));
}

#[test]
fn a_device_that_is_lost_from_the_start_leaves_the_cpu() {
    if !soft_npu_or_skip("a device that is lost from the start") {
        return;
    }
    let ran = check("lost", Goes::Down("ERROR_DEVICE_LOST"));
    assert!(ran.log.of("run").all(|run| run.number("code") != 0));
}

/// Linux ends a job after two seconds.
#[test]
fn a_hang_that_the_kernel_ends_is_a_lost_device() {
    if !soft_npu_or_skip("a hang that the kernel ends") {
        return;
    }
    check("abort@2", Goes::Down("ERROR_DEVICE_LOST"));
    check(&format!("abort@{}", in_answer()), Goes::Unseen);
}

#[test]
fn wrong_answers_are_found() {
    if !soft_npu_or_skip("wrong answers of a device") {
        return;
    }
    let once = check("wrong@2", Goes::Down("its known answer differs by 1.000"));
    assert!(once.log.count("run") > 0);
    let always = check("wrong", Goes::Down("quarantined: its known answer differs"));
    assert!(always.log.count("run") > 0);
}
