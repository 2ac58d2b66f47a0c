//! Metrics of requests for the vectors and scores of texts.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;

use super::admission::class_name;
use super::error::ApiError;
use super::metrics::{Label, Outcome};
use heg_sched::Class;

/// The routes of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextRoute {
    Embeddings,
    Rerank,
}

/// Counters of texts, by route and class.
#[derive(Debug, Default)]
pub(super) struct TextCounts {
    requests: Family<[Label; 3], Counter>,
    texts: Family<[Label; 2], Counter>,
    tokens: Family<[Label; 2], Counter>,
    seconds: Family<[Label; 2], Seconds>,
    queued: Family<[Label; 2], Seconds>,
    waiting: Family<[Label; 2], Gauge>,
}

type Seconds = Counter<f64, AtomicU64>;

/// The counts of a route, for the page.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct ShownTexts {
    route: &'static str,
    /// Requests that ended, whatever their outcome.
    requests: u64,
    texts: u64,
    tokens: u64,
    /// Time from the arrival of requests to their answer, in sum.
    seconds: f64,
    /// Time that texts spent in the scheduler's queue, in sum.
    queued_seconds: f64,
    /// Texts without an answer.
    waiting: i64,
}

/// A request whose texts are under way; counted when it is dropped.
pub(super) struct RunningTexts {
    /// The counters of all clients, and of its own.
    counts: Vec<Arc<TextCounts>>,
    labels: [Label; 2],
    arrived: Instant,
    outcome: Outcome,
    /// Texts that are done, their tokens and their time in the queue.
    texts: u64,
    tokens: u64,
    queued: Duration,
    waiting: i64,
}

impl TextRoute {
    const ALL: [Self; 2] = [Self::Embeddings, Self::Rerank];

    fn name(self) -> &'static str {
        match self {
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
        }
    }
}

impl TextCounts {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Requests for vectors and scores that ended";
        registry.register("text_requests", help, self.requests.clone());
        registry.register("texts", "Texts with a vector or score", self.texts.clone());
        let help = "Tokens of texts with a vector or score";
        registry.register("text_tokens", help, self.tokens.clone());
        let help = "Time from the arrival of requests for vectors and scores to their end";
        registry.register_with_unit("text", help, Unit::Seconds, self.seconds.clone());
        let help = "Time that texts were in the scheduler's queue";
        registry.register_with_unit("text_queued", help, Unit::Seconds, self.queued.clone());
        let help = "Texts that have no vector or score yet";
        registry.register("waiting_texts", help, self.waiting.clone());
    }

    /// Returns the counts of both routes.
    pub(super) fn shown(&self) -> [ShownTexts; 2] {
        TextRoute::ALL.map(|route| {
            let mut shown = ShownTexts {
                route: route.name(),
                ..ShownTexts::default()
            };
            for class in [Class::Reactive, Class::Proactive] {
                let labels = labels(route, class);
                for outcome in Outcome::ALL {
                    let labels = [labels[0], labels[1], ("outcome", outcome.name())];
                    let requests = self.requests.get(&labels);
                    shown.requests += requests.map_or(0, |count| count.get());
                }
                shown.texts += self.texts.get(&labels).map_or(0, |count| count.get());
                shown.tokens += self.tokens.get(&labels).map_or(0, |count| count.get());
                shown.seconds += self.seconds.get(&labels).map_or(0.0, |count| count.get());
                let queued = self.queued.get(&labels);
                shown.queued_seconds += queued.map_or(0.0, |count| count.get());
                shown.waiting += self.waiting.get(&labels).map_or(0, |gauge| gauge.get());
            }
            shown
        })
    }
}

fn labels(route: TextRoute, class: Class) -> [Label; 2] {
    [("route", route.name()), ("class", class_name(class))]
}

impl RunningTexts {
    /// Counts a request of `texts` texts from now on.
    pub(super) fn new(
        counts: Vec<Arc<TextCounts>>,
        (route, class): (TextRoute, Class),
        texts: usize,
        arrived: Instant,
    ) -> Self {
        let labels = labels(route, class);
        let waiting = texts as i64;
        for counts in &counts {
            counts.waiting.get_or_create(&labels).inc_by(waiting);
        }
        Self {
            counts,
            labels,
            arrived,
            // A request that nobody waits for is dropped.
            outcome: Outcome::Cancelled,
            texts: 0,
            tokens: 0,
            queued: Duration::ZERO,
            waiting,
        }
    }

    /// Counts a text of `tokens` tokens that is done, and that was queued for this time.
    pub(super) fn done(&mut self, tokens: usize, queued: Duration) {
        self.texts += 1;
        self.tokens += tokens as u64;
        self.queued += queued;
        self.waiting -= 1;
        for counts in &self.counts {
            counts.waiting.get_or_create(&self.labels).dec();
        }
    }

    /// Notes how the request ended.
    pub(super) fn ended<T>(&mut self, result: &Result<T, ApiError>) {
        self.outcome = match result {
            Ok(_) => Outcome::Complete,
            Err(ApiError::Deadline) => Outcome::Deadline,
            Err(ApiError::ShuttingDown) => Outcome::Cancelled,
            Err(ApiError::Shed { .. }) => Outcome::Shed,
            Err(_) => Outcome::Failed,
        };
    }
}

impl Drop for RunningTexts {
    fn drop(&mut self) {
        let [route, class] = self.labels;
        let ended = [route, class, ("outcome", self.outcome.name())];
        let seconds = self.arrived.elapsed().as_secs_f64();
        for counts in &self.counts {
            counts.requests.get_or_create(&ended).inc();
            let labels = &self.labels;
            counts.texts.get_or_create(labels).inc_by(self.texts);
            counts.tokens.get_or_create(labels).inc_by(self.tokens);
            counts.seconds.get_or_create(labels).inc_by(seconds);
            let queued = self.queued.as_secs_f64();
            counts.queued.get_or_create(labels).inc_by(queued);
            counts.waiting.get_or_create(labels).dec_by(self.waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn texts_are_counted_by_route_class_and_outcome() {
        let (all, own) = (Arc::new(TextCounts::default()), Arc::default());
        let begin = |route, class, texts| {
            let counts = vec![Arc::clone(&all), Arc::clone(&own)];
            RunningTexts::new(counts, (route, class), texts, Instant::now())
        };
        let mut done = begin(TextRoute::Embeddings, Class::Proactive, 2);
        done.done(5, Duration::from_millis(250));
        done.done(7, Duration::from_millis(500));
        done.ended(&Ok(()));
        drop(done);
        let mut late = begin(TextRoute::Rerank, Class::Reactive, 3);
        late.done(11, Duration::ZERO);
        late.ended::<()>(&Err(ApiError::Deadline));
        drop(late);
        drop(begin(TextRoute::Rerank, Class::Reactive, 1));
        let running = begin(TextRoute::Rerank, Class::Proactive, 4);
        let mut registry = Registry::with_prefix("heg");
        all.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        // Times differ, and the order of labels is not fixed.
        let mut lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("heg_text_seconds_total"))
            .collect();
        lines.sort_unstable();
        insta::assert_snapshot!("texts", lines.join("\n"));
        let [embeddings, rerank] = all.shown();
        assert_eq!(
            (embeddings.requests, embeddings.texts, embeddings.tokens),
            (1, 2, 12)
        );
        assert_eq!((rerank.requests, rerank.texts, rerank.waiting), (2, 1, 4));
        assert_eq!(embeddings.queued_seconds, 0.75);
        drop(running);
        assert_eq!(own.shown()[1].waiting, 0);
    }
}
