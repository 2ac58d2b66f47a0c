//! Tries many worlds, and reports the first one that breaks a rule.
//!
//! `HEG_WORLDS=20000..1020000` tries other seeds than an ordinary run. A world that breaks a rule is run again, and all
//! of its events and actions are printed.

use std::ops::Range;
use std::time::Instant;

use heg_sched::{Actions, Event, Micros, Scheduler};

use crate::scenario::{Scenario, Verdict};

/// Returns the seeds of this run: those of `HEG_WORLDS`, e.g. `7..8`, or the ordinary ones.
pub(crate) fn worlds(ordinary: Range<u64>) -> Range<u64> {
    let Ok(asked) = std::env::var("HEG_WORLDS") else {
        return ordinary;
    };
    let (first, end) = asked.split_once("..").unwrap();
    first.parse().unwrap()..end.parse().unwrap()
}

/// Checks all worlds; panics at the first that breaks a rule, or for which `judge` returns a problem.
pub(crate) fn check(
    name: &str,
    worlds: Range<u64>,
    world: impl Fn(u64) -> Scenario,
    judge: impl Fn(&Scenario, &Verdict) -> Option<String>,
) {
    let start = Instant::now();
    for seed in worlds.clone() {
        let scenario = world(seed);
        let verdict = scenario.run();
        let judged = judge(&scenario, &verdict);
        if verdict.run.is_err() || !verdict.violations.is_empty() || judged.is_some() {
            eprintln!("{scenario:#?}");
            let _ = scenario.judge(Loud(scenario.scheduler()));
            let (run, violations) = (verdict.run.err(), verdict.violations);
            panic!("{name}, seed {seed}: {run:?} {violations:#?} {judged:?}");
        }
    }
    let secs = start.elapsed().as_secs_f64();
    eprintln!("{name}: worlds {worlds:?} in {secs:.1} s");
}

/// A scheduler that prints its events and actions.
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
