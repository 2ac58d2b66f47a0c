//! A policy of your own beside the shipped one: the same requests on the same machine, in virtual time.
//!
//! `cargo run --release -p heg-sim --example own_policy -- mine.ron`
//!
//! Start from a file of `graph-specs/policies`, each of whose fields has its meaning in `graph-specs/src/policy.rs`.
//! Without an argument the policy is `agent-xpu` without preemption: the reader of an answer waits for whole prompts.

#![allow(
    clippy::disallowed_methods,
    reason = "the caller of the library reads files"
)]

use std::error::Error;
use std::rc::Rc;

use heg_sched::CachedCosts;
use heg_sim::{AnalyticCosts, Dimensions, Machine, Metrics, simulate};
use heg_spec::{Policy, Source, shipped};
use heg_workload::{Trace, TraceSpec, Workload};

fn main() -> Result<(), Box<dyn Error>> {
    let agent_xpu = shipped::policy("agent-xpu")?;
    let own = match std::env::args().nth(1) {
        Some(file) => {
            let text = std::fs::read_to_string(&file)?;
            Policy::parse(Source {
                file: &file,
                text: &text,
            })?
        }
        None => {
            let mut policy = agent_xpu.clone();
            policy.name = "without preemption".to_owned();
            policy.prefill.preempt = false;
            policy
        }
    };
    // A quarter of an hour with a question every twelve seconds and an agent's call every four.
    let spec = TraceSpec {
        reactive_per_minute: 5.0,
        proactive_per_minute: 15.0,
        ..TraceSpec::default()
    };
    let trace = Trace::draw(&spec, &[Workload::sample()]);
    let costs = AnalyticCosts::core_ultra_5_125h(Dimensions::llama_3b());
    let costs = Rc::new(CachedCosts::new(costs));
    println!("policy                TTFT of a question, mean and P90   latency of a call, mean");
    for policy in [agent_xpu, own] {
        let name = policy.name.clone();
        let mut scheduler = heg_sched::scheduler(policy, Rc::clone(&costs));
        let run = simulate(&mut scheduler, &costs, &Machine::default(), &trace)?;
        let Metrics {
            reactive,
            proactive,
            ..
        } = Metrics::of(&run);
        println!(
            "{name:<20} {:>9.2} s {:>9.2} s {:>26.2} s",
            reactive.ttft_secs_mean, reactive.ttft_secs_p90, proactive.latency_secs_mean
        );
    }
    Ok(())
}
