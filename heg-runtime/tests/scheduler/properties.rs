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

#[test]
#[ignore]
fn survey() {
    let n: u64 = std::env::var("N").unwrap().parse().unwrap();
    let mut found = std::collections::BTreeMap::<String, (u64, u64, String)>::new();
    for seed in 0..n {
        let verdict = Scenario::of(seed).run();
        let mut note = |key: String, text: String| {
            found.entry(key).or_insert((0, seed, text)).0 += 1;
        };
        if let Err(e) = &verdict.run { note(format!("{e:?}").split([' ', '{']).next().unwrap().into(), e.to_string()); }
        if let Some(v) = verdict.violations.first() {
            let w: String = v.what.chars().filter(|c| c.is_alphabetic() || *c == ' ').take(60).collect();
            note(format!("{:?} {w}", v.rule), format!("{v}"));
        }
    }
    for (k, v) in found { eprintln!("{k}\n      {v:?}"); }
}
