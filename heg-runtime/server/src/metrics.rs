//! Metrics for Prometheus: counters of the server and of each client with a token, and the engine's status shortly
//! before the scrape.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::account::Scope;
use super::admission::class_name;
use super::answering::AnswerStats;
use super::engine_metrics;
use super::error::{ApiError, Result};
use super::held::Held;
use super::text_metrics::{RunningTexts, ShownTexts, TextCounts, TextRoute};
use heg_runtime::energy::{DomainEnergy, EnergyMeter};
use heg_runtime::engine::Status;
use heg_sched::Class;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Complete,
    Cancelled,
    Deadline,
    Failed,
    Shed,
}

pub(super) type Label = (&'static str, &'static str);

/// Counters since the start of the server, and further state of the server itself.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    all: Arc<Counts>,
    /// The counters of each client with a token.
    own: Mutex<BTreeMap<Scope, Arc<Counts>>>,
    pub(super) connections: Gauge,
    /// The longest time for which the event loop was held.
    pub(super) held: Arc<Held>,
    /// The machine's counters of energy, if it has any.
    energy: Mutex<Option<EnergyMeter>>,
}

/// Counters of a client's requests, together with those of all clients.
#[derive(Debug, Clone)]
pub(super) struct ClientMetrics {
    all: Arc<Counts>,
    own: Option<Arc<Counts>>,
}

/// Counters of requests.
#[derive(Debug, Default)]
struct Counts {
    requests: Family<[Label; 2], Counter>,
    refused: Family<[(&'static str, String); 1], Counter>,
    prompt_tokens: Family<[Label; 1], Counter>,
    reused_tokens: Family<[Label; 1], Counter>,
    generated_tokens: Family<[Label; 1], Counter>,
    ttft: ByClass,
    tpot: ByClass,
    texts: Arc<TextCounts>,
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
    /// Counts the machine's energy from now on.
    pub(super) fn with_energy(self, meter: Option<EnergyMeter>) -> Self {
        Self {
            energy: Mutex::new(meter),
            ..self
        }
    }

    fn register_energy(&self, registry: &mut Registry) {
        let mut meter = self.energy.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(meter) = meter.as_mut() else { return };
        let domains = Family::<[(&'static str, String); 1], Counter<f64, AtomicU64>>::default();
        for DomainEnergy { name, joules } in meter.read() {
            domains.get_or_create(&[("domain", name)]).inc_by(joules);
        }
        let help = "Energy of the machine since the server began, all processes";
        registry.register_with_unit("energy", help, Unit::Joules, domains);
    }

    /// Returns the counters of a client.
    pub(super) fn of(&self, scope: Scope) -> ClientMetrics {
        let own = matches!(scope, Scope::Client(_)).then(|| {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(own.entry(scope).or_default())
        });
        ClientMetrics {
            all: Arc::clone(&self.all),
            own,
        }
    }

    /// Returns what the page shows of texts: the counts of all clients.
    pub(super) fn shown_texts(&self) -> [ShownTexts; 2] {
        self.all.texts.shown()
    }

    /// Counts a request that was refused with this status.
    pub(super) fn refused(&self, status: u16) {
        self.all.refused(status);
    }

    /// Returns all metrics in Prometheus' text format (OpenMetrics 1.0).
    pub(super) fn text(&self, status: &Status) -> Result<String> {
        let mut registry = Registry::with_prefix("heg");
        self.register(&mut registry);
        engine_metrics::register(&mut registry, status);
        encoded(&registry)
    }

    /// Returns the server's own metrics.
    pub(super) fn server_text(&self) -> Result<String> {
        let mut registry = Registry::with_prefix("heg");
        self.register(&mut registry);
        encoded(&registry)
    }

    /// Returns the metrics of a model's engine, which name the model.
    pub(super) fn engine_text(&self, model: &str, status: &Status) -> Result<String> {
        let mut registry = Registry::with_prefix("heg");
        let label = (Cow::Borrowed("model"), Cow::Owned(model.to_owned()));
        engine_metrics::register(registry.sub_registry_with_label(label), status);
        encoded(&registry)
    }

    fn register(&self, registry: &mut Registry) {
        self.all.register(registry);
        registry.register("connections", "Open connections", self.connections.clone());
        let held = Gauge::<f64, AtomicU64>::default();
        held.set(self.held.longest().as_secs_f64());
        let help = "The longest processor time for which one connection held the event loop";
        registry.register_with_unit("event_loop_stall", help, Unit::Seconds, held);
        self.register_energy(registry);
    }

    /// Returns the metrics of a client that may not see those of others: its counters, and its number of live requests
    /// of each class.
    pub(super) fn own_text(
        &self,
        scope: Scope,
        live: [(&'static str, usize); 2],
    ) -> Result<String> {
        let mut registry = Registry::with_prefix("heg");
        if let Some(own) = self.of(scope).own {
            own.register(&mut registry);
        }
        let gauges = Family::<[Label; 1], Gauge>::default();
        for (class, requests) in live {
            gauges
                .get_or_create(&[("class", class)])
                .set(requests as i64);
        }
        let help = "Your requests that wait or run";
        registry.register("own_live_requests", help, gauges);
        encoded(&registry)
    }
}

fn encoded(registry: &Registry) -> Result<String> {
    let mut text = String::new();
    let written = encode(&mut text, registry);
    written.map_err(|error| ApiError::Failed {
        why: error.to_string(),
    })?;
    Ok(text)
}

impl ClientMetrics {
    /// Counts the end of an admitted request; `stats` is `Some` if the engine saw the end.
    pub(super) fn ended(&self, class: Class, outcome: Outcome, stats: Option<&AnswerStats>) {
        for counts in [&self.all].into_iter().chain(&self.own) {
            counts.ended(class, outcome, stats);
        }
    }

    /// Counts a request of `texts` texts from now on.
    pub(super) fn texts(
        &self,
        (route, class): (TextRoute, Class),
        texts: usize,
        arrived: Instant,
    ) -> RunningTexts {
        let counts = [&self.all].into_iter().chain(&self.own);
        let counts = counts.map(|counts| Arc::clone(&counts.texts)).collect();
        RunningTexts::new(counts, (route, class), texts, arrived)
    }

    /// Counts a refusal in the client's own counters; the common counters are kept elsewhere.
    pub(super) fn refused(&self, status: u16) {
        if let Some(own) = &self.own {
            own.refused(status);
        }
    }
}

impl Counts {
    fn ended(&self, class: Class, outcome: Outcome, stats: Option<&AnswerStats>) {
        let class = ("class", class_name(class));
        let labels = [class, ("outcome", outcome.name())];
        self.requests.get_or_create(&labels).inc();
        let Some(stats) = stats else {
            return;
        };
        let count = |family: &Family<[Label; 1], Counter>, tokens: u32| {
            family.get_or_create(&[class]).inc_by(tokens.into());
        };
        count(&self.prompt_tokens, stats.prompt_tokens);
        count(&self.reused_tokens, stats.reused_tokens);
        count(&self.generated_tokens, stats.answer_tokens);
        let observe = |times: &ByClass, time: std::time::Duration| {
            times.0.get_or_create(&[class]).observe(time.as_secs_f64());
        };
        if stats.answer_tokens > 0 {
            observe(&self.ttft, stats.ttft);
        }
        if stats.answer_tokens > 1 {
            observe(&self.tpot, stats.tpot);
        }
    }

    fn refused(&self, status: u16) {
        let labels = [("status", status.to_string())];
        self.refused.get_or_create(&labels).inc();
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
        self.texts.register(registry);
    }
}

impl Outcome {
    pub(super) const ALL: [Self; 5] = [
        Self::Complete,
        Self::Cancelled,
        Self::Deadline,
        Self::Failed,
        Self::Shed,
    ];

    pub(super) fn name(self) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;
    use heg_runtime::engine::{Entry, WaitStatus};

    #[test]
    fn energy_is_told_where_the_machine_counts_it() {
        let folder = tempfile::tempdir().unwrap();
        let zone = folder.path().join("intel-rapl:0");
        std::fs::create_dir(&zone).unwrap();
        let write = |name, text| std::fs::write(zone.join(name), text).unwrap();
        write("name", "package-0\n");
        write("max_energy_range_uj", "262143328850\n");
        write("energy_uj", "1000000\n");
        let metrics = Metrics::default().with_energy(EnergyMeter::open(folder.path()));
        write("energy_uj", "3500000\n");
        let text = metrics.text(&Status::default()).unwrap();
        let line = "heg_energy_joules_total{domain=\"package-0\"} 2.5";
        assert!(text.lines().any(|it| it == line), "{text}");
        let text = Metrics::default().text(&Status::default()).unwrap();
        assert!(!text.contains("joules"), "{text}");
    }

    #[test]
    fn the_engines_figures_are_in_seconds() {
        let wait = |entry, count, median_us| WaitStatus {
            entry,
            count,
            median_us,
            p90_us: 2 * median_us,
            max_us: 3 * median_us,
        };
        let status = Status {
            launches: 400,
            decode_steps: 50,
            drafted_tokens: 90,
            accepted_tokens: 60,
            warmed: 3,
            warm_failures: vec!["the compiler refuses it".to_owned()],
            dispatch_us: 5_000,
            waits: vec![
                wait(Entry::Idle, 2, 40),
                wait(Entry::Preempting, 7, 4_500),
                wait(Entry::Queued, 0, 0),
            ],
            kernel_us_max: 31_250,
            stretch_us_max: 40_000,
            ..Status::default()
        };
        let text = Metrics::default().text(&status).unwrap();
        // The order of labels is not fixed.
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
