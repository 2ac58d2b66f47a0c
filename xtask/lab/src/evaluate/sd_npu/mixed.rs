//! Drafts in mixed traces: their benefit for reactive and proactive requests, under the real scheduler.

use super::super::line::{Figure, PaperLine, Unit};
use super::serving::recorded;
use anyhow::{Context, Result};
use heg_sched::{Class, Lane, Micros};
use heg_sim::{DraftRecords, Metrics, ModelSheet, Platform, Run, SimulatedDrafts};
use heg_spec::shipped;
use heg_workload::{Trace, TraceSpec, Workload};
use xtask::fail::Fail;

/// Reactive and proactive requests per minute: in the middle of Agent.xpu's mixed regime.
const RATES: (f64, f64) = (4.0, 8.0);
const SEEDS: u64 = 4;

/// Data sets, one with answers that are easy to draft for and one with harder ones.
const DATA: [&str; 2] = ["agent-30m", "mtrag_un"];

/// Compares traces with drafts with the same ones without.
pub(super) fn mixed(records: &DraftRecords) -> Result<Vec<PaperLine>> {
    let soc = shipped::soc("core-ultra-5-125h")?;
    let platform = Platform::new(&soc, &ModelSheet::shipped("llama-3.2-3b")?, 256)?;
    let off = served(&platform, false)?;
    let mut lines = Vec::new();
    for data in DATA {
        let record = recorded(records, data, "chain of 16")?;
        let mut drafting = platform.clone();
        drafting.machine.drafts = Some(SimulatedDrafts::new(record, 5));
        let on = served(&drafting, false)?;
        let name = format!("mixed trace on {}, drafts as on {data}", soc.name);
        let note = "at least 1 wanted; Agent.xpu's policy, answers decoded on the iGPU";
        lines.extend(gains(&name, (&off, &on), note, |gain| gain >= 1.0));
        let both = served(&drafting, true)?;
        let name = format!("{name}, the NPU verifying beside the iGPU against the iGPU alone");
        let share = 100.0 * both.npu_share;
        let note = format!(
            "more than 1 wanted; the NPU verifies in {share:.1}% of the time: {NPU_BESIDE}"
        );
        // If it never verifies, nothing changes, which is not a gain.
        lines.extend(gains(&name, (&on, &both), &note, |gain| gain > 1.0));
    }
    Ok(lines)
}

/// The conditions under which the NPU is a second decode lane.
const NPU_BESIDE: &str = "it does where no prompt has it, others decode, and costs say that both lanes give more together; \
     off in the shipped policy";

/// Compares the figures after a change with those before.
fn gains(
    name: &str,
    (before, after): (&Means, &Means),
    note: &str,
    is_reached: fn(f64) -> bool,
) -> Vec<PaperLine> {
    let figures = [
        (
            "mean time of a reactive request",
            before.reactive_secs / after.reactive_secs,
        ),
        (
            "mean time of a proactive request",
            before.proactive_secs / after.proactive_secs,
        ),
        (
            "proactive tokens a second",
            after.proactive_tokens_per_sec / before.proactive_tokens_per_sec,
        ),
        (
            "energy of a token",
            before.joules_per_token / after.joules_per_token,
        ),
    ];
    let line = |(what, gain): (&str, f64)| {
        let name = format!("{name}: {what}, gain");
        let line = PaperLine::beside(name, Unit::Times, Figure::One(gain));
        line.wanted(is_reached(gain), note)
    };
    figures.map(line).into()
}

/// Means over traces.
#[derive(Default)]
struct Means {
    reactive_secs: f64,
    proactive_secs: f64,
    proactive_tokens_per_sec: f64,
    joules_per_token: f64,
    /// Share of the time in which the NPU verifies.
    npu_share: f64,
}

fn served(platform: &Platform, second_lane: bool) -> Result<Means> {
    let mut policy = shipped::policy("agent-xpu")?;
    // Bundles have three kernels for a layer.
    policy.decode.fused_layer = false;
    policy.decode.second_lane = second_lane;
    let workloads = [Workload::sample().without_sessions()];
    let mut means = Means::default();
    for seed in 0..SEEDS {
        let spec = TraceSpec {
            reactive_per_minute: RATES.0,
            proactive_per_minute: RATES.1,
            span: Micros(10 * 60 * 1_000_000),
            seed,
            ..TraceSpec::default()
        };
        let trace = Trace::draw(&spec, &workloads);
        let run = platform.serve(&policy.clone().into(), &trace, false);
        let run = run.with_context(|| Fail::check(format!("mixed trace {seed}")))?;
        let metrics = Metrics::of(&run);
        let share = 1.0 / SEEDS as f64;
        means.reactive_secs += share * metrics.reactive.latency_secs_mean;
        means.proactive_secs += share * metrics.proactive.latency_secs_mean;
        means.proactive_tokens_per_sec += share * proactive_tokens(&run) / metrics.span_secs;
        means.joules_per_token += share * metrics.joules_per_token;
        let npu_secs = run.usage.decode_secs[Lane::Npu as usize];
        means.npu_share += share * npu_secs / metrics.span_secs;
    }
    Ok(means)
}

fn proactive_tokens(run: &Run) -> f64 {
    let proactive = run
        .requests
        .iter()
        .filter(|it| it.class == Class::Proactive);
    proactive.map(|it| f64::from(it.output_tokens)).sum()
}
