//! The outcomes of replayed requests, and the figures computed from them. Figures are computed only here, so that they
//! mean the same for every server.

use serde::{Deserialize, Serialize};

use heg_sched::Class;

/// The outcome of a request. Times count from when the request was due, whether or not it could be sent then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Priority class.
    pub class: Class,
    /// Time at which the request was due, in ms from the start.
    pub at_ms: f64,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Number of requested tokens.
    pub asked_tokens: u32,
    /// Number of received tokens.
    pub output_tokens: u32,
    /// Time to the first token, in ms; for a request without one, to its end.
    pub ttft_ms: f64,
    /// Time to the end of the answer, in ms.
    pub latency_ms: f64,
    /// The longest time between two tokens, in ms.
    pub gap_ms_max: f64,
    /// The reason why the answer is missing or incomplete.
    pub failure: Option<String>,
}

/// Figures of a replayed trace.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Figures of the reactive requests.
    pub reactive: ClassFigures,
    /// Figures of the proactive requests.
    pub proactive: ClassFigures,
}

/// Figures of the requests of a class. All but the counts leave out failed requests; means over nothing are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ClassFigures {
    /// Number of requests that were sent.
    pub requests: usize,
    /// Number of requests that were refused, broke off or took too long.
    pub failed: usize,
    /// Number of requests whose answer ended before it had the requested number of tokens.
    pub short: usize,
    /// Mean time from when a request was due to the end of its answer, in s.
    pub latency_secs_mean: f64,
    /// Median latency, in s.
    pub latency_secs_p50: f64,
    /// 90th percentile of the latency, in s.
    pub latency_secs_p90: f64,
    /// Longest latency, in s.
    pub latency_secs_max: f64,
    /// Mean time to the first token, in s.
    pub ttft_secs_mean: f64,
    /// 90th percentile of the time to the first token, in s.
    pub ttft_secs_p90: f64,
    /// Time per token after the first, over all of these tokens, in s.
    pub tpot_secs_mean: f64,
    /// The longest time between two tokens of an answer, in s.
    pub gap_secs_max: f64,
    /// Mean latency divided by mean tokens of prompt and answer, in s: normalised latency (Agent.xpu v2 6.1).
    pub secs_per_token: f64,
    /// Prompt tokens per second, from when the first request was due to the end of the last.
    pub prompt_tokens_per_s: f64,
    /// Answer tokens per second, over the same time.
    pub output_tokens_per_s: f64,
}

impl Figures {
    /// Computes the figures of a replay.
    pub fn of(outcomes: &[Outcome]) -> Self {
        let class = |class| {
            let all = outcomes.iter().filter(|outcome| outcome.class == class);
            ClassFigures::of(&all.collect::<Vec<_>>())
        };
        Self {
            reactive: class(Class::Reactive),
            proactive: class(Class::Proactive),
        }
    }
}

impl ClassFigures {
    fn of(outcomes: &[&Outcome]) -> Self {
        let done: Vec<&Outcome> = outcomes
            .iter()
            .filter(|outcome| outcome.failure.is_none())
            .copied()
            .collect();
        let sum = |figure: &dyn Fn(&Outcome) -> f64| done.iter().map(|o| figure(o)).sum::<f64>();
        let mean = |figure| ratio(sum(figure), done.len() as f64);
        let latencies = sorted(done.iter().map(|o| o.latency_ms / 1e3));
        let ttfts = sorted(done.iter().map(|o| o.ttft_ms / 1e3));
        let starts = done.iter().map(|o| o.at_ms).fold(f64::INFINITY, f64::min);
        let ends = done.iter().map(|o| o.at_ms + o.latency_ms);
        let span_secs = (ends.fold(0.0, f64::max) - starts) / 1e3;
        let (prompts, outputs) = (
            sum(&|o| f64::from(o.prompt_tokens)),
            sum(&|o| f64::from(o.output_tokens)),
        );
        let later_tokens = sum(&|o| f64::from(o.output_tokens.saturating_sub(1)));
        let gaps = done.iter().map(|o| o.gap_ms_max / 1e3);
        let is_short = |o: &&&Outcome| o.output_tokens < o.asked_tokens;
        Self {
            requests: outcomes.len(),
            failed: outcomes.len() - done.len(),
            short: done.iter().filter(is_short).count(),
            latency_secs_mean: mean(&|o| o.latency_ms / 1e3),
            latency_secs_p50: percentile(&latencies, 50),
            latency_secs_p90: percentile(&latencies, 90),
            latency_secs_max: percentile(&latencies, 100),
            ttft_secs_mean: mean(&|o| o.ttft_ms / 1e3),
            ttft_secs_p90: percentile(&ttfts, 90),
            tpot_secs_mean: ratio(sum(&|o| (o.latency_ms - o.ttft_ms) / 1e3), later_tokens),
            gap_secs_max: gaps.fold(0.0, f64::max),
            secs_per_token: ratio(sum(&|o| o.latency_ms / 1e3), prompts + outputs),
            prompt_tokens_per_s: ratio(prompts, span_secs),
            output_tokens_per_s: ratio(outputs, span_secs),
        }
    }

    /// Prompt and answer tokens per second together.
    pub fn tokens_per_s(&self) -> f64 {
        self.prompt_tokens_per_s + self.output_tokens_per_s
    }
}

fn sorted(figures: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures
}

/// Returns the percentile by nearest rank; 0 if there are no values.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn ratio(value: f64, by: f64) -> f64 {
    if by > 0.0 { value / by } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(at_ms: f64, latency_ms: f64) -> Outcome {
        Outcome {
            class: Class::Reactive,
            at_ms,
            prompt_tokens: 89,
            asked_tokens: 11,
            output_tokens: 11,
            ttft_ms: 100.0,
            latency_ms,
            gap_ms_max: latency_ms / 5.0,
            failure: None,
        }
    }

    #[test]
    fn figures_are_of_what_was_answered() {
        let mut outcomes: Vec<Outcome> = (1..=10)
            .map(|i| outcome(f64::from(i) * 1000.0, f64::from(i) * 1000.0))
            .collect();
        outcomes[0].output_tokens = 10;
        outcomes.push(Outcome {
            failure: Some("429 Too Many Requests".to_owned()),
            ..outcome(0.0, 1e9)
        });
        let figures = Figures::of(&outcomes);
        let reactive = figures.reactive;
        let counts = (reactive.requests, reactive.failed, reactive.short);
        assert_eq!(counts, (11, 1, 1));
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        close(reactive.latency_secs_mean, 5.5);
        close(reactive.latency_secs_p50, 5.0);
        close(reactive.latency_secs_p90, 9.0);
        close(reactive.latency_secs_max, 10.0);
        close(reactive.ttft_secs_p90, 0.1);
        close(reactive.tpot_secs_mean, 54.0 / 99.0);
        close(reactive.gap_secs_max, 2.0);
        close(reactive.secs_per_token, 55.0 / 999.0);
        // The first request was due at 1 s, the last one ended at 20 s.
        close(reactive.prompt_tokens_per_s, 890.0 / 19.0);
        close(reactive.tokens_per_s(), 999.0 / 19.0);
        assert_eq!(figures.proactive, ClassFigures::default());
    }
}
