//! Every kind of fault, under each shipped policy, in random worlds: culprits end, all other requests get all their
//! tokens, memory comes back, and nothing hangs.
//!
//! `HEG_WORLDS=0..100000 cargo test --release -p heg-sim --test scheduler fault_worlds` tries a hundred thousand worlds
//! under each policy.

use std::ops::Range;

use heg_sched::{Class, Finish, Lane, Micros, RequestId};
use heg_sim::{Contender, Faults, Flaw, Interruption, LaunchFault, Rival};
use heg_spec::{Policy, Seeded};

use crate::scenario::{Scenario, Verdict};
use crate::worlds::{check, worlds};

/// The seeds of an ordinary test run, under each policy.
const WORLDS: Range<u64> = 0..1500;

/// The virtual time in which every world ends: ten requests of some hundred tokens, each of which may hang for twenty
/// times as long as it takes, half a second on the slowest machine.
const ENDS_BEFORE: Micros = Micros(300_000_000);

/// Returns a world under a policy.
pub(crate) fn world(policy: &Policy, seed: u64) -> Scenario {
    world_of(&policy.clone().into(), seed)
}

/// Returns the same world under any contender.
pub(crate) fn world_of(contender: &Contender, seed: u64) -> Scenario {
    let mut scenario = Scenario::of(2 * seed);
    let mut random = Seeded::new(seed ^ 0xfa17);
    scenario.put_under(contender.clone());
    scenario.policy.limits.tokens_per_iteration = [1, 8, 40, 512][random.below(4)];
    let decode = &mut scenario.policy.decode;
    decode.batch_max = decode.batch_max.min([2, 4, 32][random.below(3)]);
    scenario.machine.flash_write = Micros([0, 300, 5000][random.below(3)]);
    scenario.machine.faults = match random.below(2) {
        0 => of_few(&mut random, &scenario),
        _ => of_all(&mut random, &scenario),
    };
    scenario
}

/// Returns a random time below `millis`.
fn ms(random: &mut Seeded, millis: usize) -> Micros {
    Micros(random.below(millis * 1000) as u64)
}

/// Returns a random fault of a launch, late by at most `late_ms`.
fn launch_fault(random: &mut Seeded, late_ms: usize) -> LaunchFault {
    match random.below(4) {
        0 => LaunchFault::Fail,
        1 => LaunchFault::Hang,
        2 => LaunchFault::Late(ms(random, late_ms)),
        _ => LaunchFault::OutOfMemory,
    }
}

fn requests(random: &mut Seeded, scenario: &Scenario, most: usize) -> Vec<RequestId> {
    let count = scenario.trace.requests.len();
    let chosen = 0..random.below(most + 1);
    chosen
        .map(|_| RequestId(random.below(count) as u64))
        .collect()
}

/// Faults for which only some requests are to blame: all others have to come through.
fn of_few(random: &mut Seeded, scenario: &Scenario) -> Faults {
    let mut faults = Faults::default();
    for id in requests(random, scenario, 3) {
        // Not so late that the lane counts as lost.
        let fault = launch_fault(random, 50);
        let every = 1 + random.below(3) as u64;
        faults.culprits.insert(id, Flaw { fault, every });
    }
    faults.never_reserved.extend(requests(random, scenario, 1));
    for lane in Lane::ALL {
        if scenario.costs.devices[lane as usize].is_some() && random.below(3) == 0 {
            let lost = ms(random, 60);
            // Sooner than requests give up waiting for the lane.
            let back = Some(lost + ms(random, scenario.policy.limits.timeout_min_ms as usize - 1));
            faults.interruptions.push(Interruption { lane, lost, back });
        }
    }
    // One fewer than a request tolerates.
    for _ in 0..random.below(3) {
        faults.refusals.insert(random.below(12) as u64);
    }
    flash_faults(random, &mut faults);
    faults
}

fn flash_faults(random: &mut Seeded, faults: &mut Faults) {
    for failed in [&mut faults.failed_writes, &mut faults.failed_reads] {
        match random.below(3) {
            0 => {}
            1 => failed.extend((0..random.below(4)).map(|_| random.below(6) as u64)),
            _ => failed.extend(0..1000),
        }
    }
}

/// Faults of all kinds.
fn of_all(random: &mut Seeded, scenario: &Scenario) -> Faults {
    let mut faults = of_few(random, scenario);
    for _ in 0..random.below(8) {
        let fault = match random.below(12) {
            0 => LaunchFault::Wedge,
            _ => launch_fault(random, 300),
        };
        faults.launches.insert(random.below(150) as u64, fault);
    }
    for interruption in &mut faults.interruptions {
        interruption.back = match random.below(3) {
            0 => None,
            _ => Some(interruption.lost + ms(random, 80)),
        };
    }
    for _ in 0..random.below(8) {
        faults.refusals.insert(random.below(20) as u64);
    }
    faults
}

/// Checks the ends of requests beyond the checker's own rules; returns the problem, if any.
pub(crate) fn judge(scenario: &Scenario, verdict: &Verdict) -> Option<String> {
    let run = verdict.run.as_ref().ok()?;
    if run.ended > ENDS_BEFORE {
        return Some(format!("it takes until {} s", run.ended.as_secs()));
    }
    let faults = &scenario.machine.faults;
    // If launches fail at random, or no lane comes back, the checker decides which requests may fail.
    let patience = Micros::from_millis(scenario.policy.limits.timeout_min_ms);
    let is_back = |it: &Interruption| it.back.is_some_and(|back| back < it.lost + patience);
    let few = faults.launches.is_empty()
        && faults.refusals.len() < 3
        && faults.interruptions.iter().all(is_back)
        && run
            .requests
            .iter()
            .any(|record| record.first_token.is_some());
    let may_fail = |id: &RequestId| {
        !few || faults.culprits.contains_key(id) || faults.never_reserved.contains(id)
    };
    let mut all = (0..)
        .map(RequestId)
        .zip(&run.requests)
        .zip(&scenario.trace.requests);
    all.find_map(|((id, record), asked)| {
        let fine = match record.finish? {
            Finish::Complete => {
                // The context may be full before that.
                let fits = scenario.costs.context_tokens + 1 - asked.prompt_tokens;
                record.output_tokens == asked.output_tokens.min(fits)
            }
            Finish::Failed => may_fail(&id),
            Finish::Cancelled => asked.cancel_after.is_some(),
            Finish::Deadline => asked.deadline_after.is_some(),
            Finish::Shed => true,
        };
        (!fine).then(|| {
            format!(
                "{id} ends as {:?} with {} tokens",
                record.finish, record.output_tokens
            )
        })
    })
}

/// Checks the worlds under one policy.
fn check_policy(name: &str) {
    let contender = Contender::named(name).unwrap();
    let world = |seed| world_of(&contender, seed);
    check(name, worlds(WORLDS), world, judge);
}

macro_rules! policies {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check_policy($name);
        })*

        /// The policies that have a test here.
        const TESTED: &[&str] = &[$($name),*];
    };
}

policies! {
    agent_xpu: "agent-xpu",
    agent_xpu_one_device: "agent-xpu-one-device",
    agent_xpu_pair: "agent-xpu-pair",
    agent_xpu_quiet: "agent-xpu-quiet",
    agent_xpu_v1: "agent-xpu-v1",
    cpu_continuous_batching: "cpu-continuous-batching",
    cpu_priority_batching: "cpu-priority-batching",
    heterollm_layer: "heterollm-layer",
    heterollm_tensor: "heterollm-tensor",
    igpu_continuous_batching: "igpu-continuous-batching",
    sd_npu: "sd-npu",
    igpu_preempt_recompute: "igpu-preempt-recompute",
    igpu_time_sharing: "igpu-time-sharing",
    serial_npu_igpu: "serial-npu-igpu",
}

#[test]
fn every_policy_is_tried() {
    let shipped = heg_spec::shipped::POLICIES.iter().map(|(name, _)| *name);
    let all: Vec<&str> = shipped.chain(Rival::ALL.map(Rival::name)).collect();
    assert_eq!(TESTED, all);
}

/// The worlds have many faults, and yet most requests come through.
#[test]
fn much_goes_wrong_and_most_requests_come_through() {
    let policy = heg_spec::shipped::policy("agent-xpu").unwrap();
    let (mut complete, mut failed, mut restarts, mut reactive) = (0, 0, 0, 0);
    for seed in 0..300 {
        for record in world(&policy, seed).run().run.unwrap().requests {
            restarts += record.restarts;
            match record.finish {
                Some(Finish::Complete) => {
                    complete += 1;
                    reactive += u32::from(record.class == Class::Reactive);
                }
                Some(Finish::Failed) => failed += 1,
                _ => {}
            }
        }
    }
    let found =
        format!("{complete} complete, {reactive} reactive, {failed} failed, {restarts} restarts");
    assert!(
        complete > 900 && reactive > 300 && failed > 60 && restarts > 60,
        "{found}"
    );
    eprintln!("{found}");
}
