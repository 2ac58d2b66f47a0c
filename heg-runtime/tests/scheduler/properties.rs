//! Every rule holds in every world.
//!
//! `HEG_WORLDS=20000..1020000 cargo test --release -p heg-runtime --features sim --test scheduler properties`
//! tries a million other worlds, some minutes. A world that breaks a rule is run again, and all that happens in it
//! is printed.

use std::ops::Range;
use std::time::Instant;

use heg_runtime::sched::{Actions, Event, Micros, Scheduler};

use crate::scenario::Scenario;

/// Seeds of an ordinary test run.
const WORLDS: Range<u64> = 0..20_000;

/// Seeds of this run: those of `HEG_WORLDS`, e.g. `7..8`.
fn worlds() -> Range<u64> {
    let Ok(asked) = std::env::var("HEG_WORLDS") else {
        return WORLDS;
    };
    let (first, end) = asked.split_once("..").unwrap();
    first.parse().unwrap()..end.parse().unwrap()
}

/// Checks all worlds; panics at the first that breaks a rule.
fn check(world: fn(u64) -> Scenario) {
    let (start, worlds) = (Instant::now(), worlds());
    for seed in worlds.clone() {
        let scenario = world(seed);
        let verdict = scenario.run();
        if verdict.run.is_err() || !verdict.violations.is_empty() {
            eprintln!("{scenario:#?}");
            let _ = scenario.judge(Loud(scenario.scheduler()));
            let (run, violations) = (verdict.run.err(), verdict.violations);
            panic!("seed {seed}: {run:?} {violations:#?}");
        }
    }
    eprintln!(
        "worlds {worlds:?} in {:.1} s",
        start.elapsed().as_secs_f64()
    );
}

#[test]
fn every_rule_holds() {
    check(Scenario::of);
}

#[test]
fn every_rule_that_concerns_them_holds_for_the_baselines() {
    check(Scenario::of_baseline);
}

/// Equal input, equal actions, at equal times.
#[test]
fn the_same_world_twice_gives_the_same_actions() {
    for seed in 0..500 {
        let [one, other] = [(); 2].map(|()| Scenario::of(seed).log());
        assert_eq!(one, other, "seed {seed}");
        assert!(!one.is_empty());
    }
}

/// Prints events and actions.
struct Loud<S>(S);

impl<S: Scheduler> Scheduler for Loud<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        eprintln!("{:>9} {event:?}", now.0);
        let first = actions.len();
        self.0.step(now, event, actions);
        for action in &actions[first..] {
            eprintln!("{:>9}  -> {action:?}", "");
        }
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }
}
