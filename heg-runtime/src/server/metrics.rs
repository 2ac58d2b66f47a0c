//! Figures for Prometheus: what the server counts itself, and how the engine stands when it is asked.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::admission::class_name;
use super::answering::Figures;
use super::timeline::lane_name;
use crate::engine::Status;
use crate::sched::Class;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Complete,
    Cancelled,
    Deadline,
    Failed,
    Shed,
}

type Label = (&'static str, &'static str);

/// What is counted from the start of the server on.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    requests: Family<[Label; 2], Counter>,
    refused: Family<[(&'static str, String); 1], Counter>,
    prompt_tokens: Family<[Label; 1], Counter>,
    reused_tokens: Family<[Label; 1], Counter>,
    generated_tokens: Family<[Label; 1], Counter>,
    ttft: ByClass,
    tpot: ByClass,
    pub(super) connections: Gauge,
}

/// A histogram for each class.
#[derive(Debug)]
struct ByClass(Family<[Label; 1], Histogram>);

impl Default for ByClass {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(SECONDS)))
    }
}

impl Metrics {
    /// A request that was let in has ended. Figures are there if the engine saw its end.
    pub(super) fn ended(&self, class: Class, outcome: Outcome, figures: Option<&Figures>) {
        let class = ("class", class_name(class));
        let labels = [class, ("outcome", outcome.name())];
        self.requests.get_or_create(&labels).inc();
        let Some(figures) = figures else {
            return;
        };
        let count = |family: &Family<[Label; 1], Counter>, tokens: u32| {
            family.get_or_create(&[class]).inc_by(tokens.into());
        };
        count(&self.prompt_tokens, figures.prompt_tokens);
        count(&self.reused_tokens, figures.reused_tokens);
        count(&self.generated_tokens, figures.answer_tokens);
        let observe = |times: &ByClass, time: std::time::Duration| {
            times.0.get_or_create(&[class]).observe(time.as_secs_f64());
        };
        if figures.answer_tokens > 0 {
            observe(&self.ttft, figures.ttft);
        }
        if figures.answer_tokens > 1 {
            observe(&self.tpot, figures.tpot);
        }
    }

    /// A request was refused, with this status.
    pub(super) fn refused(&self, status: u16) {
        let labels = [("status", status.to_string())];
        self.refused.get_or_create(&labels).inc();
    }

    /// Everything, in Prometheus' text format (OpenMetrics 1.0).
    pub(super) fn text(&self, status: &Status) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("heg");
        self.register(&mut registry);
        register_status(&mut registry, status);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("requests", "Requests that ended", self.requests.clone());
        registry.register(
            "refused",
            "Requests that were refused",
            self.refused.clone(),
        );
        for (name, help, family) in [
            ("prompt_tokens", "Tokens of prompts", &self.prompt_tokens),
            (
                "reused_tokens",
                "Tokens of prompts that were in the KV cache",
                &self.reused_tokens,
            ),
            ("answer_tokens", "Tokens of answers", &self.generated_tokens),
        ] {
            registry.register(name, help, family.clone());
        }
        for (name, help, times) in [
            (
                "ttft",
                "Time from submission to the first token",
                &self.ttft,
            ),
            ("tpot", "Time per token after the first", &self.tpot),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, times.0.clone());
        }
        registry.register("connections", "Open connections", self.connections.clone());
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
    let busy = Family::<[Label; 1], Counter<f64, std::sync::atomic::AtomicU64>>::default();
    for lane in &status.lanes {
        busy.get_or_create(&[("lane", lane_name(lane.lane))])
            .inc_by(lane.busy_us as f64 / 1e6);
    }
    registry.register_with_unit("lane_busy", "Time a lane has worked", Unit::Seconds, busy);
    for (name, help, value) in [
        ("kv", "KV cache reserved", status.kv_bytes),
        ("kv_budget", "KV cache allowed", status.kv_budget_bytes),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value.try_into().unwrap_or(i64::MAX));
        registry.register_with_unit(name, help, Unit::Bytes, gauge);
    }
    let kept = Gauge::<i64>::default();
    kept.set(status.flows_kept.into());
    registry.register("flows_kept", "Flows that keep a KV cache", kept);
    let launches = Counter::<u64>::default();
    launches.inc_by(status.launches);
    registry.register("launches", "Kernels and iterations launched", launches);
    let dispatch = Counter::<f64, std::sync::atomic::AtomicU64>::default();
    dispatch.inc_by(status.dispatch_us as f64 / 1e6);
    let help = "Time spent in scheduling and dispatch";
    registry.register_with_unit("dispatch", help, Unit::Seconds, dispatch);
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::Failed => "failed",
            Self::Shed => "shed",
        }
    }
}

/// Bounds of the histograms, in seconds: from a fast token to a patient request.
const SECONDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
