//! Every rule holds in every world.

use std::time::Instant;

use heg_runtime::sched::{Actions, Event, Micros, Scheduler};

use crate::scenario::Scenario;

/// Worlds in an ordinary test run.
const WORLDS: u64 = 20_000;

/// Checks the worlds of some seeds; panics with the first seed that breaks a rule.
fn check(seeds: std::ops::Range<u64>, world: fn(u64) -> Scenario) {
    for seed in seeds {
        let scenario = world(seed);
        let verdict = scenario.run();
        if let Err(error) = &verdict.run {
            panic!(
                "seed {seed}: {error}\n{:#?}\n{scenario:#?}",
                verdict.violations
            );
        }
        if let Some(first) = verdict.violations.first() {
            panic!("seed {seed}: {first}\n{scenario:#?}");
        }
    }
}

#[test]
fn every_rule_holds_in_20_000_worlds() {
    let start = Instant::now();
    check(0..WORLDS, Scenario::of);
    eprintln!("{WORLDS} worlds in {:.1} s", start.elapsed().as_secs_f64());
}

#[test]
fn every_rule_that_concerns_them_holds_for_the_baselines() {
    check(0..WORLDS, Scenario::of_baseline);
}

/// `cargo test --release -p heg-runtime --test scheduler -- --ignored a_million`, some minutes.
#[test]
#[ignore = "takes minutes; run it in release"]
fn every_rule_holds_in_a_million_worlds() {
    check(WORLDS..WORLDS + 1_000_000, Scenario::of);
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

/// Prints what happens in one world: `SEED=7 cargo test … --ignored show --nocapture`.
#[test]
#[ignore = "for a seed that failed"]
fn show() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let scenario = Scenario::of(seed.unwrap_or(0));
    eprintln!("{scenario:#?}");
    let verdict = scenario.run_broken(Loud);
    eprintln!(
        "{:#?}\n{:#?}",
        verdict.violations,
        verdict.run.map(|run| run.requests)
    );
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
