//! Faults of driver and device at the calls of one answer, on every NPU, with weights of eight and of four bits: each time
//! the answer is right, in bounded time, and the device is given back.
//!
//! An ordinary run has a part of the calls, another one on each NPU and with each kind of weights; `HEG_FULL` has them all.

use std::time::{Duration, Instant};

use heg_sched::{Class, Finish};
use heg_tests::soft_npu::{DeviceLog, InSoftNpu, soft_npu_or_skip};

use super::asked::references;
use super::{Machine, Scene, ended, inside, lanes_of, policy_of};
use crate::world::{Answer, World, request};

/// Most time of an answer: that in which a kernel that hangs is given up.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs one answer beside faults, from the first look at the device on; returns the log, and the time that it took.
fn answer(inside: &InSoftNpu, scene: Scene, faults: &str) -> (DeviceLog, Finish, Duration) {
    inside.forget();
    inside.plan(faults);
    let begin = Instant::now();
    let loader = Machine::Alone.loader(scene.bits.bundle());
    let policy = policy_of(None, &loader);
    let references = references(scene.bits);
    let world = World::asking(references, loader, policy, lanes_of(None));
    // The shortest prompt.
    let asked = request(Class::Reactive, &references[0].prompt);
    let (tokens, ending) = Answer::of(&world.engine, asked).wait();
    let expected = &references[0].answer;
    let what = format!("{scene:?}, `{faults}`: {:?}", ending.error);
    assert_eq!(tokens, expected[..tokens.len()], "{what}");
    if ending.finish == Finish::Complete {
        assert_eq!(tokens.len(), expected.len(), "{what}");
    }
    drop(world);
    let took = begin.elapsed();
    assert!(took < LIMIT, "{what}: {took:?}");
    let log = inside.log();
    // A device that nothing was asked of has nothing to give back.
    if ["import", "allocate", "graph"].map(|word| log.count(word)) == [0; 3] {
        return (log, ending.finish, took);
    }
    let log = ended(inside, Duration::from_secs(10));
    assert_eq!(log.left(), Some([0; 6]), "{what}");
    (log, ending.finish, took)
}

/// Faults, with the word of the log that says how often an answer comes to where they may happen, and the distance of a call
/// that fails to the next. Memory and what is imported end at each.
const FAULTS: [(&str, &str, usize); 14] = [
    ("memory", "allocate", 1),
    ("import", "import", 1),
    ("create", "graph", 1),
    ("create-binary", "graph", 1),
    ("create-memory", "graph", 1),
    ("initialize", "graph", 1),
    ("queue", "queue-create", 1),
    ("update", "update", 16),
    ("submit", "submit", 7),
    ("lost", "run", 7),
    ("wrong", "run", 5),
    ("nan", "run", 7),
    ("unwritten", "run", 11),
    ("late", "run", 40),
];

#[test]
fn a_fault_at_any_call_ends_with_the_right_answer() {
    let test = "npu::sweep::a_fault_at_any_call_ends_with_the_right_answer";
    if let Some((inside, scene)) = inside() {
        return sweep(&inside, scene);
    }
    if soft_npu_or_skip(test) {
        for (number, scene) in Scene::all().enumerate() {
            let part = [(PART, number.to_string())];
            scene.play(test, Duration::from_secs(580), &part);
        }
    }
}

/// The part of the calls that a process has.
const PART: &str = "HEG_TEST_NPU_PART";

fn sweep(inside: &InSoftNpu, scene: Scene) {
    let parts = match std::env::var_os("HEG_FULL") {
        Some(_) => 1,
        None => 40 * Scene::all().count(),
    };
    let part: usize = std::env::var(PART).unwrap().parse().unwrap();
    let begin = Instant::now();
    let (calm, finish, _) = answer(inside, scene, "");
    assert_eq!(finish, Finish::Complete);
    let (mut worlds, mut happened, mut longest) = (0, 0, Duration::ZERO);
    let mut live = |faults: &str| {
        let (log, finish, took) = answer(inside, scene, faults);
        assert_eq!(finish, Finish::Complete, "{scene:?}, `{faults}`");
        worlds += 1;
        happened += usize::from(log.count("FAULT") > 0);
        longest = longest.max(took);
    };
    for (fault, word, step) in FAULTS {
        let calls = calm.count(word);
        let first = 1 + step * (part % parts);
        for call in (first..=calls).step_by(step * parts) {
            live(&format!("{fault}@{call}"));
        }
        // And from one on; a device that is always late is none that fails.
        if fault == "late" {
            continue;
        }
        let third = calls.div_ceil(3).max(1);
        for call in (1..=calls)
            .step_by(third)
            .skip(part % parts % 3)
            .step_by(parts)
        {
            live(&format!("{fault}@{call}+"));
        }
    }
    live("init");
    live("status");
    let runs = calm.count("run");
    live(&format!("abort@{}", runs - 9));
    println!(
        "{scene:?}: {worlds} worlds, in {happened} of them a fault, in {:?}, the longest {longest:?}; calm: {} \
         allocations, {} imports, {runs} runs",
        begin.elapsed(),
        calm.count("allocate"),
        calm.count("import"),
    );
    assert!(happened * 10 >= worlds * 7, "{happened} of {worlds}");
}
