//! Every rule holds in every world.
//!
//! `HEG_WORLDS=20000..1020000 cargo test --release -p heg-sim --test scheduler properties`
//! tries a million other worlds, some minutes.

use std::ops::Range;

use crate::scenario::Scenario;
use crate::worlds::{check, worlds};

/// The seeds of an ordinary test run.
const WORLDS: Range<u64> = 0..8_000;

#[test]
fn every_rule_holds() {
    check("agent-xpu", worlds(WORLDS), Scenario::of, |_, _| None);
}

#[test]
fn every_rule_that_concerns_them_holds_for_the_baselines() {
    check(
        "baselines",
        worlds(WORLDS),
        Scenario::of_baseline,
        |_, _| None,
    );
}

/// Equal input gives equal actions at equal times.
#[test]
fn the_same_world_twice_gives_the_same_actions() {
    for seed in 0..500 {
        let [one, other] = [(); 2].map(|()| Scenario::of(seed).log());
        assert_eq!(one, other, "seed {seed}");
        assert!(!one.is_empty());
    }
}
