//! The cost of a scheduler step with 64 live requests, with and without drafts.
//!
//! The time of a whole run says little about a single step, so each step is timed by itself, and the median and the
//! 99th percentile over a long run are printed; criterion then measures the run.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes times")]

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use heg_sched::{Actions, AgentXpu, CachedCosts, Class, ClientId, Event, Micros, Scheduler};
use heg_sim::{AnalyticCosts, Dimensions, DraftRecords, Machine, SimulatedDrafts, simulate};
use heg_workload::{Arrival, Trace, TraceRequest, TraceSpec, Workload};

/// 64 long-lived requests that arrive at once, a quarter of them reactive.
fn trace() -> Trace {
    let request = |place: u32| TraceRequest {
        client: ClientId::default(),
        arrival: Arrival::At(Micros(u64::from(place) * 1000)),
        class: match place % 4 {
            0 => Class::Reactive,
            _ => Class::Proactive,
        },
        flow: None,
        ends_flow: false,
        prompt_tokens: 300 + 53 * place % 1700,
        shared_tokens: 0,
        output_tokens: 400 + place % 50,
        output_tokens_max: 512,
        deadline_after: None,
        cancel_after: None,
    };
    Trace {
        requests: (0..64).map(request).collect(),
    }
}

/// Drafts as recorded for an agent's answers.
fn drafts() -> Option<SimulatedDrafts> {
    let records = DraftRecords::shipped().ok()?;
    let record = records.find("agent-30m/summary", "chain of 16")?;
    Some(SimulatedDrafts::new(record, 1))
}

/// Times every step while at least 60 requests are live.
struct Timed<S> {
    scheduler: S,
    live: u32,
    steps: Vec<Duration>,
}

impl<S: Scheduler> Scheduler for Timed<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        self.live += u32::from(matches!(event, Event::Submit(_)));
        let start = Instant::now();
        self.scheduler.step(now, event, actions);
        let took = start.elapsed();
        if self.live >= 60 {
            self.steps.push(took);
        }
        let over = actions
            .iter()
            .filter(|a| matches!(a, heg_sched::Action::Finish(..)));
        self.live -= over.count() as u32;
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}

fn steps(criterion: &mut Criterion) {
    let trace = trace();
    let costs = CachedCosts::new(AnalyticCosts::core_ultra_5_125h(Dimensions::llama_3b()));
    let Ok(policy) = heg_spec::shipped::policy("agent-xpu") else {
        return;
    };
    for (name, drafts) in [("64 requests", None), ("64 drafted requests", drafts())] {
        let machine = Machine {
            drafts,
            ..Machine::default()
        };
        let run = || {
            let mut timed = Timed {
                scheduler: AgentXpu::new(policy.clone(), &costs),
                live: 0,
                steps: Vec::new(),
            };
            let run = simulate(&mut timed, &costs, &machine, &trace);
            (timed.steps, run)
        };
        let (mut times, outcome) = run();
        times.sort_unstable();
        let at = |share: usize| times.get(times.len() * share / 100);
        let drafted = outcome.map_or(0, |run| run.usage.drafted_tokens);
        println!(
            "{name}: {} steps, median {:?}, p99 {:?}; {drafted} drafted tokens verified",
            times.len(),
            at(50),
            at(99)
        );
        criterion.bench_function(&format!("run of {name}"), |bencher| bencher.iter(run));
    }
    let spec = TraceSpec {
        reactive_per_minute: 5.0,
        proactive_per_minute: 25.0,
        ..TraceSpec::default()
    };
    let trace = Trace::draw(&spec, &[Workload::sample()]);
    criterion.bench_function("15 minutes at 30 requests a minute", |bencher| {
        bencher.iter(|| {
            let mut scheduler = AgentXpu::new(policy.clone(), &costs);
            simulate(&mut scheduler, &costs, &Machine::default(), &trace)
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = steps
}
criterion_main!(benches);
