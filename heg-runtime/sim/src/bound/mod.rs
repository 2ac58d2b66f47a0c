//! A lower bound of mean latency that holds for every scheduler, also for one that knows the future.
//!
//! **Relaxation.** Kernels may be divided without end, preempted and moved between devices at no cost; each device has
//! its own speed for each kernel, and all of them share the memory's bandwidth. What is left are three facts. In a span
//! of t µs
//!
//! 1. each lane runs for at most t µs, and the memory moves at most what it can in t µs;
//! 2. a request's own part of a call is at least the least that any call takes for a token, a row or a pair of a query
//!    and a key ([`shares`]), whatever company it has: a batch of any size reads the weights once; of a prompt's rows
//!    before the last one the last layer needs keys and values alone;
//! 3. an answer's tokens come one after the other, each no sooner than a step of one row takes alone.
//!
//! **One machine.** Give each lane and the memory a price, λ ≥ 0 with a sum of 1. By (1) the work that all of them do in
//! t µs costs at most t, and by (2) a request's work costs at least `W = Σ amount · min over lanes of its price`. So the
//! requests' progress in any schedule is that of one preemptive machine of speed 1 with jobs of size W, and shortest
//! remaining time first has the least sum of completion times there (Schrage 1968), also where jobs share the machine:
//! at any time the fewest jobs are left. This holds for every λ; the largest of a grid is taken.
//!
//! **Critical path.** By (3), and by (1) for the prompt's own calls alone, a request takes at least its prompt with all
//! lanes to itself, and then its steps.
//!
//! **Both.** Prompts on the one machine, each followed by the steps of its answer, is a bound too. The largest of the
//! three is the bound ([`LatencyBound::mean_secs`]). It holds for requests of one class beside any others, since others
//! only take from the lanes.
//!
//! It takes for granted that calls over more rows or longer contexts never take less time, that nothing is drafted, and
//! that a request's shared tokens are all that it can save. A cancelled request, or one that is given up, is not bounded.

mod queue;
mod shares;
mod uses;

use heg_sched::{Class, Costs, Micros};
use heg_workload::{Arrival, Trace, TraceRequest};

use super::memory::DramModel;
pub use shares::{DecodeKernels, Division};
use shares::{Prices, Shares};

/// The largest trace for which a bound is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceExtent {
    /// Number of requests: no batch has more rows.
    pub requests: u32,
    /// Number of tokens of all prompts and answers together: no call has more.
    pub tokens: u32,
}

impl TraceExtent {
    /// Returns the extent of a trace.
    pub fn of(trace: &Trace) -> Self {
        let tokens = |r: &TraceRequest| r.prompt_tokens.saturating_add(r.output_tokens);
        let tokens = trace.requests.iter().map(tokens);
        Self {
            requests: trace.requests.len().max(1) as u32,
            tokens: tokens.fold(1, u32::saturating_add),
        }
    }

    fn covers(self, other: Self) -> bool {
        other.requests <= self.requests && other.tokens <= self.tokens
    }
}

/// Lower bounds of mean latency on one machine with one model.
#[derive(Debug, Clone)]
pub struct LatencyBound {
    shares: Shares,
    prices: Vec<Prices>,
    extent: TraceExtent,
}

impl LatencyBound {
    /// Creates the bounds of a machine for traces up to an extent.
    pub fn new(
        costs: &impl Costs,
        memory: &DramModel,
        decode: DecodeKernels,
        division: Division,
        extent: TraceExtent,
    ) -> Self {
        let prices = Prices::grid();
        Self {
            shares: Shares::of(costs, memory, (decode, division), &prices, extent),
            prices,
            extent,
        }
    }

    /// Returns the least mean latency of a trace's requests of a class, or of all, in s; `None` if there are none, or if
    /// the trace is larger than the extent.
    pub fn mean_secs(&self, trace: &Trace, class: Option<Class>) -> Option<f64> {
        if !self.extent.covers(TraceExtent::of(trace)) {
            return None;
        }
        let all = trace.requests.iter();
        let chosen: Vec<&TraceRequest> = all
            .filter(|request| class.is_none_or(|class| class == request.class))
            .collect();
        let count = chosen.len() as f64;
        let paths: f64 = chosen.iter().map(|it| self.critical_path_us(it)).sum();
        let released: Option<Vec<f64>> = chosen.iter().map(|it| released_us(it)).collect();
        let queued = released.map_or(0.0, |released| self.queued_us(&chosen, &released));
        (count > 0.0).then(|| paths.max(queued) / count / 1e6)
    }

    /// Returns the least time of a request by itself, in µs.
    pub fn critical_path_us(&self, request: &TraceRequest) -> f64 {
        let prompt = self.shares.prompt(request, Some(own_tokens(request)));
        let alone = self.prices.iter().map(|prices| prices.of(&prompt));
        alone.fold(0.0, f64::max) + self.shares.head_us() + self.answer_us(request)
    }

    /// Returns the least time from a request's first token to its last, in µs.
    fn answer_us(&self, request: &TraceRequest) -> f64 {
        let first = request.prompt_tokens + 1;
        let steps = request.output_tokens.saturating_sub(1);
        self.shares.steps_us(first, steps)
    }

    /// Returns the least sum of latencies of requests that queue for the machine, in µs.
    fn queued_us(&self, requests: &[&TraceRequest], released_us: &[f64]) -> f64 {
        let answers: f64 = requests.iter().map(|it| self.answer_us(it)).sum();
        let of_prices = |prices: &Prices| {
            let mut prompts = Vec::with_capacity(requests.len());
            let mut whole = Vec::with_capacity(requests.len());
            for (request, released) in requests.iter().zip(released_us) {
                let prompt = prices.of(&self.shares.prompt(request, None));
                let first = request.prompt_tokens + 1;
                let steps = request.output_tokens.saturating_sub(1);
                prompts.push((*released, prompt));
                whole.push((*released, prompt + self.shares.rows(prices, first, steps)));
            }
            (queue::least_sum(&prompts) + answers).max(queue::least_sum(&whole))
        };
        self.prices.iter().map(of_prices).fold(0.0, f64::max)
    }
}

/// Returns the number of a prompt's tokens that have to be computed.
fn own_tokens(request: &TraceRequest) -> u32 {
    let prompt = request.prompt_tokens.max(1);
    prompt - request.shared_tokens.min(prompt - 1)
}

/// Returns the time of a request's arrival, in µs, if no schedule changes it.
fn released_us(request: &TraceRequest) -> Option<f64> {
    match request.arrival {
        Arrival::At(Micros(at)) => Some(at as f64),
        Arrival::After { .. } => None,
    }
}

#[cfg(test)]
mod tests;
