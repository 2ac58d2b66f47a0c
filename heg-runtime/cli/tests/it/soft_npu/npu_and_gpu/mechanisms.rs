//! Agent.xpu's mechanisms between a lane of the NPU and one of a GPU, each with a run in which the policy has it off.

use std::thread;

use heg_sched::{Class, Lane, Mechanism, Micros};

use super::lanes::{AGENT_XPU, CHUNK, Lanes, Ran, Run, WHOLE, policy};
use super::npu_and_gpu_or_skip;

/// A prompt of several chunks and a remainder.
fn prompt(times: usize) -> String {
    vec!["Will it rain in Oslo tomorrow?"; times].join(" ")
}

/// Steps in which a mechanism acted.
fn acted(lanes: &Lanes, mechanism: Mechanism) -> f64 {
    lanes.metric("heg_mechanism_steps_total", mechanism.name())
}

/// The GPU takes whole chunks of a prompt that somebody waits for, as the NPU is slow; without the mechanism it has no
/// more than the remainder, which no static kernel takes. The answer is the same.
#[test]
fn a_prompt_is_split_between_npu_and_gpu_and_its_remainder_is_the_gpus() {
    if !npu_and_gpu_or_skip("an elastic split between a software NPU and a GPU") {
        return;
    }
    // Chosen: longer than the kernels of a GPU in software on a machine that is busy.
    let times = "qkv=60000,ffn=60000";
    let run = |changes: &[(&str, &str)]| {
        let lanes = Lanes::start(&policy(AGENT_XPU, changes), times);
        let text = lanes.ask(Class::Reactive, &[&prompt(6)], 4);
        let splits = acted(&lanes, Mechanism::Split);
        let run = lanes.end();
        let id = run.requests(Class::Reactive)[0].id;
        let ran: Vec<Ran> = run.prompt(id);
        let token_wise = ran.into_iter().filter(Ran::is_token_wise);
        let (chunks, rest): (Vec<Ran>, Vec<Ran>) = token_wise.partition(Ran::is_chunk);
        assert!(!rest.is_empty() && rest.iter().all(|ran| ran.lane == Lane::Igpu));
        let on_gpu = chunks.iter().filter(|ran| ran.lane == Lane::Igpu).count();
        (text, splits, on_gpu, chunks.len())
    };
    let (split_text, splits, on_gpu, chunks) = run(&[]);
    assert!(
        splits > 0.0 && on_gpu > 0 && on_gpu < chunks,
        "{on_gpu} of {chunks}"
    );
    let (text, splits, on_gpu, _) = run(&WHOLE);
    assert!(splits == 0.0 && on_gpu == 0, "{on_gpu} on the GPU");
    assert_eq!(text, split_text);
}

/// While others decode on the GPU, a prompt's remainder waits there for the chunks on the NPU.
#[test]
fn a_remainder_on_the_gpu_waits_for_the_chunks_on_the_npu() {
    if !npu_and_gpu_or_skip("a deferred remainder between a software NPU and a GPU") {
        return;
    }
    let run = |defers: &str| {
        let changes = [&WHOLE[..], &[("defer_remainder: true", defers)]].concat();
        let lanes = Lanes::start(&policy(AGENT_XPU, &changes), "qkv=40000,ffn=40000");
        // The lanes' speeds are known afterwards.
        lanes.ask(Class::Reactive, &[&prompt(12)], 1);
        thread::scope(|scope| {
            scope.spawn(|| lanes.ask(Class::Reactive, &["Hello"], 250));
            thread::sleep(std::time::Duration::from_millis(500));
            lanes.ask(Class::Reactive, &[&format!("Tell me. {}", prompt(12))], 1);
        });
        let deferred = acted(&lanes, Mechanism::RemainderDeferral);
        let run = lanes.end();
        let id = run.requests(Class::Reactive)[2].id;
        let ran = run.prompt(id);
        let token_wise = || ran.iter().filter(|ran| ran.is_token_wise());
        let last = token_wise().filter(|ran| ran.is_chunk());
        let last = last.map(|ran| ran.position).max().unwrap();
        let kernels = token_wise()
            .filter(|ran| !ran.is_chunk())
            .filter_map(|own| {
                let mut same = token_wise().filter(|ran| ran.position == last);
                let same = same.find(|ran| (ran.layer, ran.kernel) == (own.layer, own.kernel))?;
                Some(own.end < same.start)
            });
        let early: Vec<bool> = kernels.collect();
        (
            deferred,
            early.iter().filter(|early| **early).count(),
            early.len(),
        )
    };
    let (deferred, early, kernels) = run("defer_remainder: true");
    assert!(
        deferred > 0.0 && 4 * early < kernels,
        "{early} of {kernels}"
    );
    let (deferred, early, kernels) = run("defer_remainder: false");
    assert!(
        deferred == 0.0 && 2 * early > kernels,
        "{early} of {kernels}"
    );
}

/// A proactive prompt on the NPU gives way to a reactive one: none of its kernels starts on the NPU until that has its
/// first token, so a person waits for one kernel, of 25 ms here. Nothing of it runs twice.
#[test]
fn a_proactive_prompt_gives_way_within_a_kernel() {
    if !npu_and_gpu_or_skip("preemption between a software NPU and a GPU") {
        return;
    }
    let run = |preempt: &str| {
        let changes = [
            &WHOLE[..],
            &[
                ("preempt: true", preempt),
                ("balance: true", "balance: false"),
            ],
        ];
        let lanes = Lanes::start(&policy(AGENT_XPU, &changes.concat()), "qkv=25000,ffn=25000");
        thread::scope(|scope| {
            scope.spawn(|| lanes.ask(Class::Proactive, &[&prompt(20)], 2));
            lanes.wait_for_chunks(4);
            lanes.ask(Class::Reactive, &[&prompt(6)], 2);
        });
        let preempted = acted(&lanes, Mechanism::Preemption);
        (preempted, lanes.end())
    };
    let beside = |run: &Run| {
        let person = run.requests(Class::Reactive)[0];
        let (arrived, served) = (person.arrived, person.first_token.unwrap());
        let background = run.prompt(run.requests(Class::Proactive)[0].id);
        let own = background.iter().filter(|ran| ran.lane == Lane::Npu);
        own.filter(|ran| ran.start > arrived && ran.start < served)
            .count()
    };
    let (preempted, with) = run("preempt: true");
    assert!(preempted > 0.0);
    assert_eq!(beside(&with), 0);
    let person = with.requests(Class::Reactive)[0];
    let first = with.prompt(person.id)[0];
    let background = with.prompt(with.requests(Class::Proactive)[0].id);
    let waited_for = background.iter().filter(|ran| {
        ran.lane == first.lane && ran.end > person.arrived && ran.start < first.start
    });
    assert!(waited_for.count() <= 1, "a person waits for one kernel");
    let mut kernels: Vec<_> = background
        .iter()
        .map(|ran| (ran.position, ran.layer, ran.kernel))
        .collect();
    let count = kernels.len();
    kernels.sort_unstable();
    kernels.dedup();
    assert_eq!(kernels.len(), count, "nothing runs twice");
    let (preempted, without) = run("preempt: false");
    assert!(
        preempted == 0.0 && beside(&without) > 0,
        "not preempted, it goes on"
    );
}

/// While a prompt waits, its attention is made ready for the NPU. There it runs where it ends earlier than on the GPU, which
/// depends on the machine that plays both; without the mechanism it never does.
#[test]
fn attention_is_made_ready_for_the_npu_while_its_request_waits() {
    if !npu_and_gpu_or_skip("attention that moves from a GPU to a software NPU") {
        return;
    }
    // The blob of the bundle's bucket is the one that a prompt of its last quarter needs.
    let long = prompt(80);
    let run = |attention: &str| {
        let changes = [("attention: WarmUp", attention)];
        let lanes = Lanes::start(&policy(AGENT_XPU, &changes), "*=1000");
        thread::scope(|scope| {
            scope.spawn(|| lanes.ask(Class::Proactive, &[&prompt(8)], 1));
            lanes.wait_for_chunks(2);
            lanes.ask(Class::Proactive, &[&long], 1);
        });
        let warmed = lanes.metric("heg_warmed_kernels_total", "");
        let run = lanes.end();
        let waited = run.requests(Class::Proactive)[1];
        assert!(waited.prompt_tokens > 24 * CHUNK, "{waited:?}");
        let ran = run.prompt(waited.id);
        let attention = ran.iter().filter(|ran| !ran.is_token_wise());
        let on_npu = attention.filter(|ran| ran.lane == Lane::Npu).count();
        (warmed, on_npu)
    };
    let (warmed, on_npu) = run("attention: WarmUp");
    println!("{warmed} kernels were made ready, attention ran on the NPU {on_npu} times");
    assert!(warmed > 0.0);
    assert_eq!(run("attention: Off"), (0.0, 0));
}

/// Under memory pressure one lane waits for the other: by the bandwidth that the bundle's annotations predict, kernels
/// run one at a time.
#[test]
fn kernels_wait_for_memory_pressure_to_fall() {
    if !npu_and_gpu_or_skip("memory pressure between a software NPU and a GPU") {
        return;
    }
    let text = include_str!("../../../../../../graph-specs/policies/agent-xpu-v1.ron");
    let tiers = "pressure: Some((medium: 0.4, high: 0.7, duration_bound: true))";
    let run = |pressure: &str| {
        let policy = policy(text, &[(tiers, pressure)]);
        let lanes = Lanes::start(&policy, "qkv=10000,ffn=10000");
        thread::scope(|scope| {
            scope.spawn(|| lanes.ask(Class::Reactive, &["Hello"], 60));
            lanes.ask(Class::Proactive, &[&prompt(12)], 2);
        });
        let held = acted(&lanes, Mechanism::Pressure);
        (held, overlaps(&lanes.end()))
    };
    let (held, side_by_side) =
        run("pressure: Some((medium: 1e-6, high: 2e-6, duration_bound: false))");
    assert!(held > 0.0 && side_by_side == 0, "{held}, {side_by_side}");
    let (held, side_by_side) = run("pressure: None");
    assert!(held == 0.0 && side_by_side > 0, "{held}, {side_by_side}");
}

/// Number of the NPU's launches that began while the GPU worked.
fn overlaps(run: &Run) -> usize {
    let times = |lane: Lane| -> Vec<(Micros, Micros)> {
        let own = run.launches().filter(|launch| launch.lane == lane);
        own.map(|launch| (launch.start, launch.end)).collect()
    };
    let gpu = times(Lane::Igpu);
    let within = |at: Micros| gpu.iter().any(|(start, end)| *start < at && at < *end);
    times(Lane::Npu)
        .iter()
        .filter(|(start, _)| within(*start))
        .count()
}
