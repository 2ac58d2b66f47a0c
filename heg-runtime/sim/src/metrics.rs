//! Metrics of a run, as Agent.xpu v2 6.1 defines them.

use serde::Serialize;

use super::engine::Run;
use super::meter::RequestRecord;
use heg_sched::{Class, Finish, Lane, Micros};

/// Metrics of a run. Means over nothing are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Metrics {
    /// Metrics of reactive requests.
    pub reactive: ClassMetrics,
    /// Metrics of proactive requests.
    pub proactive: ClassMetrics,
    /// Metrics of all requests.
    pub all: ClassMetrics,
    /// Energy per token of prompts and answers, in J.
    pub joules_per_token: f64,
    /// Utilisation of the iGPU over the time that anything ran, from 0 to 1: kernels of prompts count as 1, decode
    /// iterations as 0.46 (6.4).
    pub igpu_utilisation: f64,
    /// Busy time of the iGPU with the same weights, in s, whatever the length of the run.
    pub igpu_secs: f64,
    /// Longest wait of a reactive request for its first kernel while no other reactive request was before its first
    /// token, in s: the latency of preemption.
    pub preemption_secs_max: f64,
    /// Mean of the same waits, in s.
    pub preemption_secs_mean: f64,
    /// Longest time for which a lane cannot be interrupted, in s.
    pub longest_kernel_secs: f64,
    /// Longest wait of a proactive request for its first kernel, in s: fairness.
    pub proactive_wait_secs_max: f64,
    /// Time from the first arrival to the last end, in s.
    pub span_secs: f64,
}

/// Metrics of the requests of a class that were answered to the end.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ClassMetrics {
    /// Number of requests that arrived.
    pub arrived: usize,
    /// Number of requests that were answered.
    pub completed: usize,
    /// Mean latency from arrival to the last token, in s.
    pub latency_secs_mean: f64,
    /// 90th percentile of the latency, in s.
    pub latency_secs_p90: f64,
    /// 99th percentile of the latency, in s.
    pub latency_secs_p99: f64,
    /// Mean latency divided by mean tokens of prompt and answer, in s: normalised latency.
    pub secs_per_token: f64,
    /// Mean of each request's latency divided by its own tokens, in s: the other reading of normalised latency.
    pub secs_per_token_of_each: f64,
    /// Mean time to the first token, in s.
    pub ttft_secs_mean: f64,
    /// 90th percentile of the time to the first token, in s.
    pub ttft_secs_p90: f64,
    /// Mean time per token after the first, in s.
    pub tpot_secs_mean: f64,
    /// Mean time before the first token in which nothing of the request ran, in s.
    pub prefill_pending_secs: f64,
    /// Mean time in which a kernel of its prompt ran, in s.
    pub prefill_active_secs: f64,
    /// Mean time after the first token in which it did not decode, in s.
    pub decode_pending_secs: f64,
    /// Mean time in which it decoded, in s.
    pub decode_active_secs: f64,
}

/// Utilisation of the iGPU while it decodes, measured (6.4).
const DECODE_UTILISATION: f64 = 0.46;

impl Metrics {
    /// Computes the metrics of a run.
    pub fn of(run: &Run) -> Self {
        let class = |class| ClassMetrics::of(run.requests.iter().filter(|r| r.class == class));
        let tokens: f64 = run.requests.iter().map(tokens_of).sum();
        let usage = &run.usage;
        let igpu = Lane::Igpu as usize;
        let igpu_secs = usage.prefill_secs[igpu] + DECODE_UTILISATION * usage.decode_secs[igpu];
        let first = run.requests.iter().filter_map(|r| r.arrived).min();
        let preemptions = preemption_secs(&run.requests);
        let proactive = run.requests.iter().filter(|r| r.class == Class::Proactive);
        Self {
            reactive: class(Class::Reactive),
            proactive: class(Class::Proactive),
            all: ClassMetrics::of(run.requests.iter()),
            joules_per_token: ratio(usage.energy_joules, tokens),
            igpu_utilisation: ratio(igpu_secs, usage.active_secs),
            igpu_secs,
            preemption_secs_max: preemptions.iter().copied().fold(0.0, f64::max),
            preemption_secs_mean: ratio(preemptions.iter().sum(), preemptions.len() as f64),
            longest_kernel_secs: usage.longest_kernel_us / 1e6,
            proactive_wait_secs_max: proactive.filter_map(wait_secs).fold(0.0, f64::max),
            span_secs: run.ended.since(first.unwrap_or_default()).as_secs(),
        }
    }
}

impl ClassMetrics {
    fn of<'a>(requests: impl Iterator<Item = &'a RequestRecord>) -> Self {
        let requests: Vec<&RequestRecord> = requests.filter(|r| r.arrived.is_some()).collect();
        let complete = |r: &&&RequestRecord| r.finish == Some(Finish::Complete);
        let done: Vec<&RequestRecord> = requests.iter().filter(complete).copied().collect();
        let mean = |figure: &dyn Fn(&RequestRecord) -> f64| {
            ratio(done.iter().map(|r| figure(r)).sum(), done.len() as f64)
        };
        let percentile = |percent: usize, figure: &dyn Fn(&RequestRecord) -> f64| {
            let mut figures: Vec<f64> = done.iter().map(|r| figure(r)).collect();
            figures.sort_by(f64::total_cmp);
            // Nearest rank.
            let rank = (figures.len() * percent).div_ceil(100);
            figures.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let latency = |r: &RequestRecord| span_secs(r.arrived, r.ended);
        let ttft = |r: &RequestRecord| span_secs(r.arrived, r.first_token);
        let decode = |r: &RequestRecord| span_secs(r.first_token, r.ended);
        let latency_secs_mean = mean(&latency);
        Self {
            arrived: requests.len(),
            completed: done.len(),
            latency_secs_mean,
            latency_secs_p90: percentile(90, &latency),
            latency_secs_p99: percentile(99, &latency),
            secs_per_token: ratio(latency_secs_mean, mean(&tokens_of)),
            secs_per_token_of_each: mean(&|r| ratio(latency(r), tokens_of(r))),
            ttft_secs_mean: mean(&ttft),
            ttft_secs_p90: percentile(90, &ttft),
            tpot_secs_mean: {
                let later = |r: &RequestRecord| f64::from(r.output_tokens.saturating_sub(1));
                ratio(mean(&decode), mean(&later))
            },
            prefill_pending_secs: mean(&|r| ttft(r) - r.prefill_active.as_secs()),
            prefill_active_secs: mean(&|r| r.prefill_active.as_secs()),
            decode_pending_secs: mean(&|r| decode(r) - r.decode_active.as_secs()),
            decode_active_secs: mean(&|r| r.decode_active.as_secs()),
        }
    }
}

fn tokens_of(request: &RequestRecord) -> f64 {
    f64::from(request.prompt_tokens) + f64::from(request.output_tokens)
}

fn wait_secs(request: &RequestRecord) -> Option<f64> {
    Some(request.started?.since(request.arrived?).as_secs())
}

fn span_secs(from: Option<Micros>, to: Option<Micros>) -> f64 {
    to.unwrap_or_default()
        .since(from.unwrap_or_default())
        .as_secs()
}

fn ratio(value: f64, by: f64) -> f64 {
    if by > 0.0 { value / by } else { 0.0 }
}

/// Returns the waits of reactive requests for their first kernel while no other one was before its first token, in s.
fn preemption_secs(requests: &[RequestRecord]) -> Vec<f64> {
    let reactive: Vec<&RequestRecord> = requests
        .iter()
        .filter(|r| r.class == Class::Reactive && r.arrived.is_some())
        .collect();
    let alone = |request: &&&RequestRecord| {
        let (from, to) = (request.arrived, request.started);
        let overlaps = |other: &&RequestRecord| {
            let until = other.first_token.or(other.ended);
            !std::ptr::eq(*other, **request) && other.arrived <= to && until >= from
        };
        !reactive.iter().any(overlaps)
    };
    let waits = reactive.iter().filter(alone).filter_map(|r| wait_secs(r));
    waits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ResourceUsage;
    use heg_sched::ActivationCounts;

    fn record(class: Class, times: [u64; 4], output_tokens: u32) -> RequestRecord {
        let [arrived, started, first_token, ended] = times.map(|ms| Some(Micros(ms * 1000)));
        RequestRecord {
            class,
            prompt_tokens: 90,
            reused_tokens: 0,
            output_tokens,
            arrived,
            started,
            first_token,
            ended,
            finish: Some(Finish::Complete),
            prefill_active: Micros(200_000),
            decode_active: Micros(300_000),
            restarts: 0,
        }
    }

    #[test]
    fn figures_are_those_of_the_paper() {
        let run = Run {
            requests: vec![
                record(Class::Reactive, [0, 50, 300, 1300], 11),
                record(Class::Proactive, [100, 900, 1100, 2100], 10),
            ],
            usage: ResourceUsage {
                prefill_secs: [1.0, 0.5, 0.0],
                decode_secs: [0.0, 1.0, 0.0],
                active_secs: 2.0,
                energy_joules: 402.0,
                ..ResourceUsage::default()
            },
            ended: Micros(2_100_000),
            steps: 0,
            activations: ActivationCounts::default(),
            timeline: Vec::new(),
        };
        let metrics = Metrics::of(&run);
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        close(metrics.reactive.latency_secs_mean, 1.3);
        close(metrics.reactive.secs_per_token, 1.3 / 101.0);
        close(metrics.all.secs_per_token, 1.65 / 100.5);
        close(
            metrics.all.secs_per_token_of_each,
            (1.3 / 101.0 + 2.0 / 100.0) / 2.0,
        );
        close(metrics.reactive.ttft_secs_p90, 0.3);
        close(metrics.reactive.tpot_secs_mean, 0.1);
        close(metrics.reactive.prefill_pending_secs, 0.1);
        close(metrics.proactive.decode_pending_secs, 0.7);
        close(metrics.all.latency_secs_mean, 1.65);
        close(metrics.all.latency_secs_p99, 2.0);
        close(metrics.joules_per_token, 2.0);
        close(metrics.igpu_utilisation, 0.48);
        close(metrics.preemption_secs_max, 0.05);
        close(metrics.preemption_secs_mean, 0.05);
        close(metrics.proactive_wait_secs_max, 0.8);
    }
}
