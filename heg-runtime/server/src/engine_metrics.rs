//! Metrics of an engine: the requests that it has, what its lanes do, its memory, its drafts, and how long reactive requests
//! waited.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::admission::class_name;
use super::metrics::Label;
use super::timeline::lane_name;
use super::{kept_metrics, mechanism_metrics, pair_metrics};
use heg_runtime::engine::Status;
use heg_sched::{Class, Mechanism};

/// Registers the state of an engine.
pub(super) fn register(registry: &mut Registry, status: &Status) {
    register_status(registry, status);
    register_drafts(registry, status);
    if let Some(pair) = &status.pair {
        pair_metrics::register(registry, pair);
    }
    if let Some(kept) = &status.kept {
        kept_metrics::register(registry, kept);
    }
    if let Some(baked) = &status.baked {
        kept_metrics::register_baked(registry, baked);
    }
}

fn register_status(registry: &mut Registry, status: &Status) {
    let live = Family::<[Label; 2], Gauge>::default();
    for (class, phases) in [
        (Class::Reactive, status.reactive),
        (Class::Proactive, status.proactive),
    ] {
        for (phase, requests) in [
            ("queued", phases.queued),
            ("prefilling", phases.prefilling),
            ("decoding", phases.decoding),
        ] {
            let labels = [("class", class_name(class)), ("phase", phase)];
            live.get_or_create(&labels).set(requests.into());
        }
    }
    registry.register("live_requests", "Requests in the engine", live);
    let [busy, waited] = [(); 2].map(|()| Family::<[Label; 1], Counter<f64, AtomicU64>>::default());
    for lane in &status.lanes {
        let label = [("lane", lane_name(lane.lane))];
        busy.get_or_create(&label).inc_by(lane.busy_us as f64 / 1e6);
        let waited_secs = lane.waited_us as f64 / 1e6;
        waited.get_or_create(&label).inc_by(waited_secs);
    }
    registry.register_with_unit("lane_busy", "Time a lane has worked", Unit::Seconds, busy);
    let help = "Time a lane's work has waited while other models had the device";
    registry.register_with_unit("lane_waited", help, Unit::Seconds, waited);
    for (name, help, value) in [
        ("kv", "KV cache reserved", status.kv_bytes),
        ("kv_budget", "KV cache allowed", status.kv_budget_bytes),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value.try_into().unwrap_or(i64::MAX));
        registry.register_with_unit(name, help, Unit::Bytes, gauge);
    }
    for (name, help, value) in [
        (
            "lanes_lost",
            "Lanes that cannot be used, or whose kernels could not be prepared",
            status.lost.len() as i64,
        ),
        (
            "flows_kept",
            "Flows that keep a KV cache",
            status.flows_kept.into(),
        ),
        (
            "warm_failures",
            "Different reasons why attention could not be compiled for waiting requests",
            status.warm_failures.len() as i64,
        ),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    register_launches(registry, status);
    let dispatch = Counter::<f64, AtomicU64>::default();
    dispatch.inc_by(status.dispatch_us as f64 / 1e6);
    let help = "Time spent in scheduling and dispatch";
    registry.register_with_unit("dispatch", help, Unit::Seconds, dispatch);
    register_waits(registry, status);
}

/// Registers the scheduler's launches and compilations.
fn register_launches(registry: &mut Registry, status: &Status) {
    for (name, help, count) in [
        (
            "launches",
            "Kernels and iterations launched",
            status.launches,
        ),
        (
            "client_turns",
            "Times that a client had its turn before an earlier request of another one",
            status.mechanisms.of(Mechanism::ClientTurns),
        ),
        (
            "warmed_kernels",
            "Attention kernels compiled for waiting requests",
            status.warmed,
        ),
    ] {
        let counter = Counter::<u64>::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
    mechanism_metrics::register(registry, &status.mechanisms);
}

/// Registers the counts of decode steps and drafts. Tokens per step = (steps + accepted) / steps.
fn register_drafts(registry: &mut Registry, status: &Status) {
    for (name, help, count) in [
        (
            "decode_steps",
            "Decode steps of requests, each of which gave a token and those of its draft that were right",
            status.decode_steps,
        ),
        (
            "drafted_tokens",
            "Drafted tokens that were verified",
            status.drafted_tokens,
        ),
        (
            "accepted_tokens",
            "Drafted tokens that became part of an answer",
            status.accepted_tokens,
        ),
    ] {
        let counter = Counter::<u64>::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
}

/// Registers measured and worst-case preemption times.
fn register_waits(registry: &mut Registry, status: &Status) {
    let requests = Family::<[Label; 1], Counter>::default();
    let waits = Family::<[Label; 2], Gauge<f64, AtomicU64>>::default();
    for wait in &status.waits {
        let entry = ("entry", wait.entry.name());
        requests.get_or_create(&[entry]).inc_by(wait.count);
        for (figure, us) in [
            ("median", wait.median_us),
            ("p90", wait.p90_us),
            ("max", wait.max_us),
        ] {
            let labels = [entry, ("figure", figure)];
            waits.get_or_create(&labels).set(us as f64 / 1e6);
        }
    }
    registry.register(
        "reactive_first_kernels",
        "Reactive requests whose first kernel was launched, by how they came in",
        requests,
    );
    registry.register_with_unit(
        "reactive_wait",
        "Time from a reactive request's submission to the launch of its first kernel",
        Unit::Seconds,
        waits,
    );
    for (name, help, us) in [
        (
            "longest_kernel",
            "The longest kernel, first runs apart",
            status.kernel_us_max,
        ),
        (
            "longest_stretch",
            "The longest time in which a lane would not have given way, first runs apart",
            status.stretch_us_max,
        ),
    ] {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(us as f64 / 1e6);
        registry.register_with_unit(name, help, Unit::Seconds, gauge);
    }
}
