//! No mechanism of a shipped policy goes without acting on real lanes, but for those that are listed with a reason.

use heg_runtime::engine::{ScopeId, Speculation};
use heg_sched::{ActivationCounts, Class, Mechanism};

use super::{CHUNK, SOC, Stage, World, end, policy};

/// Mechanisms that need not act on these lanes under policies, and why.
const EXCEPTIONS: [(&[&str], &[Mechanism], &str); 3] = [
    (
        &["agent-xpu-v1"],
        &[Mechanism::PrefillFirst],
        "by a data sheet's bandwidth either lane waits for the other under pressure, so no iteration runs when \
         attention is ready; it acts under the other policies",
    ),
    (
        &["agent-xpu", "agent-xpu-quiet", "agent-xpu-pair", "sd-npu"],
        &[Mechanism::NpuAttention],
        "attention of CPU programs has no static kernels to compile; a software NPU tries it (`soft_npu`)",
    ),
    (
        &["agent-xpu-one-device"],
        &[
            Mechanism::Split,
            Mechanism::Balance,
            Mechanism::RemainderDeferral,
            Mechanism::NpuAttention,
            Mechanism::BandwidthDeferral,
        ],
        "they divide work between an NPU and another lane, and this policy is for a machine with one",
    ),
];

/// Requests of every kind: background prompts and answers, and people who come while these run, alone, at once, with
/// short prompts and long ones, and of another client.
fn ask_all(stage: &Stage) {
    let background =
        [9, 7, 3, 2, 1].map(|chunks| stage.ask(Class::Proactive, chunks * CHUNK + 9, 150));
    stage.wait_for_kernels(Class::Proactive, 4);
    let first = stage.ask(Class::Reactive, 12 * CHUNK + 5, 60);
    let short = stage.ask(Class::Reactive, 12, 60);
    stage.wait_for_first_tokens(1);
    let second = stage.ask(Class::Reactive, 8 * CHUNK + 3, 60);
    let other = ScopeId(1);
    let stranger = stage.ask_for(other, Class::Reactive, 6 * CHUNK + 7, 20);
    let later = stage.ask_for(other, Class::Proactive, 11 * CHUNK + 2, 20);
    let brief = stage.ask(Class::Proactive, CHUNK + 4, 20);
    stage.wait_for_first_tokens(5);
    let last = stage.ask(Class::Reactive, 14 * CHUNK + 20, 30);
    let beside = stage.ask(Class::Reactive, 5 * CHUNK + 11, 30);
    [first, second, short, stranger, later, brief, last, beside]
        .into_iter()
        .for_each(end);
    background.into_iter().for_each(end);
    // Only background answers decode beside this one.
    let answer = stage.ask(Class::Proactive, 2 * CHUNK, 200);
    stage.wait_for_first_tokens(14);
    end(stage.ask(Class::Reactive, 15 * CHUNK + 1, 2));
    end(answer);
    // More background answers decode than a person's leaves in its batch, under any policy.
    let answers = [9, 8, 7, 6, 5, 4, 3, 2, 1];
    let answers = answers.map(|chunks| stage.ask(Class::Proactive, chunks * CHUNK + 3, 250));
    stage.wait_for_first_tokens(24);
    end(stage.ask(Class::Reactive, 10, 60));
    answers.into_iter().for_each(end);
    // Nothing decodes beside these. The second is overdue when its turn comes, and gives way to a person's.
    let prompts = [30, 29, 20].map(|chunks| stage.ask(Class::Proactive, chunks * CHUNK + 1, 1));
    stage.wait_for_first_tokens(26);
    end(stage.ask(Class::Reactive, 6 * CHUNK, 1));
    prompts.into_iter().for_each(end);
}

/// Every shipped policy of the scheduler with mechanisms, on the lanes that it is for.
const POLICIES: [(&str, &str); 6] = [
    ("agent-xpu", SOC),
    ("agent-xpu-v1", SOC),
    ("agent-xpu-quiet", SOC),
    ("agent-xpu-one-device", "host-cpu"),
    ("agent-xpu-pair", "host-pair"),
    ("sd-npu", SOC),
];

/// Returns the mechanisms of a policy that have not acted, and have no reason.
fn never(name: &str, sum: &ActivationCounts) -> Vec<Mechanism> {
    let excepted = |it: &Mechanism| {
        let mut exceptions = EXCEPTIONS.iter();
        exceptions.any(|(policies, which, _)| policies.contains(&name) && which.contains(it))
    };
    let on = sum.on().filter(|it| sum.of(*it) == 0);
    on.filter(|it| !excepted(it)).collect()
}

#[test]
fn every_mechanism_of_a_shipped_policy_acts_or_has_a_reason() {
    let mut world = World::annotated();
    let mut found = Vec::new();
    for (name, soc) in POLICIES {
        world.soc = soc;
        world.speculation = match name {
            "sd-npu" => Speculation::Chain,
            _ => Speculation::Off,
        };
        let mut sum = ActivationCounts::default();
        for round in 0..ROUNDS_MAX {
            // A prompt of this model takes as many milliseconds as a real one takes seconds.
            let policy = policy(name, |policy| {
                policy.ageing.as_mut().unwrap().threshold_ms = [60_000, 50][round % 2];
            });
            let played = world.play(policy, ask_all);
            sum.add(&played.counts);
            if never(name, &sum).is_empty() {
                break;
            }
        }
        for mechanism in sum.on() {
            let (acted, more) = (sum.of(mechanism), sum.overruled(mechanism));
            println!("{name}: {} {acted}, {more} overruled", mechanism.name());
        }
        found.push((name, never(name, &sum)));
    }
    found.retain(|(_, never)| !never.is_empty());
    assert_eq!(found, []);
}

/// Chosen: what a machine's other work keeps from acting in one round acts in another.
const ROUNDS_MAX: usize = 8;
