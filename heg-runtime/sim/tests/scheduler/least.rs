//! No policy is faster than the bound, in any world.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use heg_sched::{Class, Finish};
use heg_sim::{DecodeKernels, Division, LatencyBound, Metrics, Run, TraceExtent};

use crate::scenario::{Scenario, Verdict};
use crate::worlds::{check, worlds};

/// The seeds of an ordinary test run; those of worlds without faults are looked at.
const WORLDS: Range<u64> = 0..300;

/// Returns a problem if the requests of a class were answered sooner than is possible.
fn too_soon(scenario: &Scenario, run: &Run, class: Option<Class>) -> Option<String> {
    let trace = &scenario.trace;
    let metrics = Metrics::of(run);
    let found = match class {
        None => metrics.all,
        Some(Class::Reactive) => metrics.reactive,
        Some(Class::Proactive) => metrics.proactive,
    };
    // A simulated launch ends at a whole µs.
    let rounding_secs = run.usage.launches as f64 / 1e6;
    [Division::Divided, Division::Whole]
        .into_iter()
        .find_map(|division| {
            let (costs, memory) = (&scenario.costs, &scenario.machine.memory);
            let (decode, extent) = (DecodeKernels::OneToo, TraceExtent::of(trace));
            let bound = LatencyBound::new(costs, memory, decode, division, extent);
            let least = bound.mean_secs(trace, class)?;
            let found = found.latency_secs_mean;
            (found + rounding_secs < least)
                .then(|| format!("{class:?}, {division:?}: {found} s, at least {least} s"))
        })
}

fn judge(scenario: &Scenario, verdict: &Verdict, judged: &AtomicUsize) -> Option<String> {
    let run = verdict.run.as_ref().ok()?;
    let complete = |finish| finish == Some(Finish::Complete);
    if !run.requests.iter().all(|it| complete(it.finish)) {
        return None;
    }
    judged.fetch_add(1, Relaxed);
    let classes = [None, Some(Class::Reactive), Some(Class::Proactive)];
    classes
        .into_iter()
        .find_map(|class| too_soon(scenario, run, class))
}

fn check_all(name: &str, world: impl Fn(u64) -> Scenario + Sync) {
    let judged = AtomicUsize::new(0);
    let worlds = worlds(WORLDS);
    let least = worlds.clone().count() / 20;
    check(name, worlds, world, |scenario, verdict| {
        judge(scenario, verdict, &judged)
    });
    let judged = judged.into_inner();
    assert!(judged >= least, "{judged} worlds");
}

#[test]
fn no_policy_beats_the_bound() {
    check_all("bound", Scenario::of);
}

#[test]
fn no_baseline_beats_the_bound() {
    check_all("bound of baselines", Scenario::of_baseline);
}
