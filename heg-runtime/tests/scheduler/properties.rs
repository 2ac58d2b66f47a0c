//! Every rule holds in every world.

use std::time::Instant;

use crate::scenario::Scenario;

/// Worlds in an ordinary test run.
const WORLDS: u64 = 20_000;

/// Checks the worlds of some seeds; panics with the first seed that breaks a rule.
fn check(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let scenario = Scenario::of(seed);
        let verdict = scenario.run();
        if let Err(error) = &verdict.run {
            panic!("seed {seed}: {error}\n{:#?}\n{scenario:#?}", verdict.violations);
        }
        if let Some(first) = verdict.violations.first() {
            panic!("seed {seed}: {first}\n{scenario:#?}");
        }
    }
}

#[test]
fn every_rule_holds_in_20_000_worlds() {
    let start = Instant::now();
    check(0..WORLDS);
    eprintln!("{WORLDS} worlds in {:.1} s", start.elapsed().as_secs_f64());
}

/// `cargo test --release -p heg-runtime --test scheduler -- --ignored a_million`, some minutes.
#[test]
#[ignore = "takes minutes; run it in release"]
fn every_rule_holds_in_a_million_worlds() {
    check(WORLDS..WORLDS + 1_000_000);
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
