//! Drafted answers: every rule holds with them too, the answers do not change, and switching drafts off has no
//! leftovers.
//!
//! `HEG_WORLDS=20000..1020000 cargo test --release -p heg-sim --test scheduler drafts` tries a million other worlds.

use std::ops::Range;

use heg_sched::{Action, Finish, Lane, Micros, Work};
use heg_sim::DraftRecords;

use crate::fault_worlds;
use crate::scenario::Scenario;
use crate::worlds::{check, worlds};

/// The seeds of an ordinary test run.
const WORLDS: Range<u64> = 0..8_000;
/// The seeds of worlds with many faults.
const FAULT_WORLDS: Range<u64> = 0..1500;
/// A world of a longer run: a preempted prompt has waited long enough to have the iGPU, and another overdue prompt has
/// not.
const PREEMPTED_AND_OVERDUE: Range<u64> = 633_380..633_381;

fn world(seed: u64) -> Scenario {
    Scenario::of(seed).drafting(seed)
}

#[test]
fn every_rule_holds_with_drafts() {
    check("drafts", worlds(WORLDS), world, |_, _| None);
    check("drafts", PREEMPTED_AND_OVERDUE, world, |_, _| None);
}

#[test]
fn every_rule_that_concerns_them_holds_for_drafting_baselines() {
    let world = |seed| Scenario::of_baseline(seed).drafting(seed);
    check("drafting baselines", worlds(WORLDS), world, |_, _| None);
}

#[test]
fn much_goes_wrong_while_drafts_are_verified() {
    for name in [
        "agent-xpu",
        "agent-xpu-one-device",
        "igpu-continuous-batching",
    ] {
        let policy = heg_spec::shipped::policy(name).unwrap();
        let world = |seed| fault_worlds::world(&policy, seed).drafting(seed);
        check(name, worlds(FAULT_WORLDS), world, fault_worlds::judge);
    }
}

/// The same worlds, with the NPU as a second lane of decoding.
#[test]
fn every_rule_holds_with_a_second_lane_of_decoding() {
    let world = |seed| {
        let mut scenario = world(seed);
        scenario.policy.decode.second_lane = true;
        scenario
    };
    check("two lanes decode", worlds(WORLDS), world, |_, _| None);
    let policy = heg_spec::shipped::policy("agent-xpu").unwrap();
    let faulty = |seed| {
        let mut scenario = fault_worlds::world(&policy, seed).drafting(seed);
        scenario.policy.decode.second_lane = true;
        scenario
    };
    check(
        "two lanes with faults",
        worlds(FAULT_WORLDS),
        faulty,
        fault_worlds::judge,
    );
    let is_verified = |(_, action): &(Micros, Action)| {
        matches!(
            action,
            Action::Launch {
                lane: Lane::Npu,
                work: Work::Decode(_),
                ..
            }
        )
    };
    let verified: usize = (0..200)
        .map(|seed| {
            world(2 * seed)
                .log()
                .iter()
                .filter(|it| is_verified(it))
                .count()
        })
        .sum();
    eprintln!("{verified} verifications on the NPU");
    assert!(verified > 20, "{verified}");
}

/// Answers keep their lengths whatever is drafted, and take fewer iterations.
#[test]
fn answers_have_their_lengths_in_fewer_iterations() {
    let (mut plain, mut drafted, mut accepted) = (0, 0, 0);
    for seed in (0..1000).step_by(2) {
        let lengths = |scenario: &Scenario| -> Vec<(Option<Finish>, u32)> {
            let run = scenario.run().run.unwrap();
            let records = run.requests.iter();
            records.map(|it| (it.finish, it.output_tokens)).collect()
        };
        let mut scenarios = [Scenario::of(seed), world(seed)];
        for scenario in &mut scenarios {
            scenario.policy.limits.requests_max = 64;
            for request in &mut scenario.trace.requests {
                (request.deadline_after, request.cancel_after) = (None, None);
            }
        }
        let [off, on] = &scenarios;
        assert_eq!(lengths(off), lengths(on), "seed {seed}");
        let usage = |scenario: &Scenario| scenario.run().run.unwrap().usage;
        assert_eq!(usage(off).drafted_tokens, 0);
        plain += usage(off).decodings;
        drafted += usage(on).decodings;
        accepted += usage(on).accepted_tokens;
    }
    assert!(accepted > 1000, "{accepted}");
    assert!(drafted < plain, "{drafted} {plain}");
}

/// A policy that verifies no drafts acts exactly as if nothing were drafted.
#[test]
fn a_policy_that_verifies_no_drafts_does_as_without_them() {
    for seed in 0..500 {
        let mut scenario = world(seed);
        scenario.policy.decode.draft_rows_max = 0;
        let drafted = scenario.log();
        scenario.machine.drafts = None;
        assert_eq!(drafted, scenario.log(), "seed {seed}");
    }
}

#[test]
fn the_same_world_twice_gives_the_same_actions_with_drafts() {
    for seed in 0..200 {
        assert_eq!(world(seed).log(), world(seed).log(), "seed {seed}");
    }
}

/// Over long answers, with all drafts verified, tokens per verification equal those of the record.
#[test]
fn recorded_acceptance_comes_out() {
    let records = DraftRecords::shipped().unwrap();
    let record = records.find("agent-30m/summary", "chain of 16").unwrap();
    let mut scenario = Scenario::of(0);
    scenario.policy = heg_spec::shipped::policy("agent-xpu").unwrap();
    scenario.costs.context_tokens = 100_000;
    scenario.trace.requests.truncate(1);
    let request = &mut scenario.trace.requests[0];
    (request.deadline_after, request.cancel_after) = (None, None);
    (request.prompt_tokens, request.output_tokens) = (20, 20_000);
    request.output_tokens_max = 20_000;
    // Rows cost nothing but their bytes.
    for device in scenario.costs.devices.iter_mut().flatten() {
        device.flops_per_sec = 1e15;
    }
    scenario.machine.drafts = Some(heg_sim::SimulatedDrafts::new(record, 1));
    let verdict = scenario.run();
    assert_eq!(verdict.violations, []);
    let usage = verdict.run.unwrap().usage;
    let found = 1.0 + usage.accepted_tokens as f64 / usage.decodings as f64;
    let expected = record.tokens_per_verification();
    assert!((found / expected - 1.0).abs() < 0.05, "{found} {expected}");
}
