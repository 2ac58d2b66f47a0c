//! Llama's shapes on the papers' machine: the waiting time of a person.

use std::rc::Rc;
use std::time::Instant;

use heg_sched::{AgentXpu, CachedCosts};
use heg_sim::{AnalyticCosts, Dimensions, Machine, Metrics, simulate};
use heg_workload::{Trace, TraceSpec, Workload};

use crate::script::of_any_kind;

fn trace() -> Trace {
    let spec = TraceSpec {
        reactive_per_minute: 5.0,
        proactive_per_minute: 25.0,
        ..TraceSpec::default()
    };
    Trace::draw(&spec, &[Workload::sample()])
}

/// Reactive requests wait only for the running kernel, and nothing is computed twice.
#[test]
fn preemption_takes_no_longer_than_a_kernel() {
    for dimensions in [Dimensions::llama_3b(), Dimensions::llama_8b()] {
        let costs = of_any_kind(CachedCosts::new(AnalyticCosts::core_ultra_5_125h(
            dimensions,
        )));
        let policy = heg_spec::shipped::policy("agent-xpu").unwrap();
        let mut scheduler = AgentXpu::new(policy, Rc::clone(&costs));
        let start = Instant::now();
        let run = simulate(&mut scheduler, &costs, &Machine::default(), &trace()).unwrap();
        let metrics = Metrics::of(&run);
        let waited = metrics.preemption_secs_max;
        eprintln!(
            "{} steps in {:?}; waited {waited} s, longest kernel {} s",
            run.steps,
            start.elapsed(),
            metrics.longest_kernel_secs
        );
        // With two kernels competing for the memory, each takes up to half as long again.
        assert!(waited <= 1.5 * metrics.longest_kernel_secs && waited < 0.1);
        assert!(run.requests.iter().all(|r| r.restarts == 0));
    }
}
