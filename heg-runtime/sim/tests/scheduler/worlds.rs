//! Tries many worlds, and reports the first one that breaks a rule.
//!
//! `HEG_WORLDS=20000..1020000` tries other seeds than an ordinary run. A world that breaks a rule is run again, and all
//! of its events and actions are printed.

use std::iter::from_fn;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
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
    world: impl Fn(u64) -> Scenario + Sync,
    judge: impl Fn(&Scenario, &Verdict) -> Option<String> + Sync,
) {
    let start = Instant::now();
    let is_bad = |seed: u64| {
        let scenario = world(seed);
        let verdict = scenario.run();
        let judged = judge(&scenario, &verdict);
        verdict.run.is_err() || !verdict.violations.is_empty() || judged.is_some()
    };
    if let Some(seed) = first(worlds.clone(), is_bad) {
        let scenario = world(seed);
        let verdict = scenario.run();
        let judged = judge(&scenario, &verdict);
        eprintln!("{scenario:#?}");
        let _ = scenario.judge(Loud(scenario.scheduler()));
        let (run, violations) = (verdict.run.err(), verdict.violations);
        panic!("{name}, seed {seed}: {run:?} {violations:#?} {judged:?}");
    }
    let secs = start.elapsed().as_secs_f64();
    eprintln!("{name}: worlds {worlds:?} in {secs:.1} s");
}

/// Returns the first seed that is bad. Two threads try them, so that the last and longest test leaves no processor idle.
fn first(worlds: Range<u64>, is_bad: impl Fn(u64) -> bool + Sync) -> Option<u64> {
    let next = AtomicU64::new(worlds.start);
    let search = || {
        let seeds = from_fn(|| Some(next.fetch_add(1, Relaxed)));
        let mut seeds = seeds.take_while(|seed| *seed < worlds.end);
        let found = seeds.find(|seed| is_bad(*seed));
        // Seeds before it are taken already.
        next.store(worlds.end, Relaxed);
        found
    };
    thread::scope(|scope| {
        let other = scope.spawn(search);
        let own = search();
        let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
        own.into_iter().chain(other).min()
    })
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

#[test]
fn the_first_bad_world_is_found_on_either_thread() {
    for bad in [3, 500, 501, 999] {
        assert_eq!(first(3..1000, |seed| seed >= bad), Some(bad));
        assert_eq!(first(3..1000, |seed| seed == bad), Some(bad));
    }
    assert_eq!(first(3..1000, |_| false), None);
}
