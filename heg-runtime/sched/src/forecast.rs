//! Forecasts the time of a request's first token, from the scheduler's state.

use super::costs::{Call, Costs};
use super::request::{Class, Lane, Micros};

/// Returns the rank of a reactive prompt, by which prompts are ordered (`prefill.short_prompts_first`): the time
/// since which it waits, plus `times` its length.
///
/// A rank falls as a prompt goes on. No later request has a lower rank than one that has waited for longer than
/// `times` its length, so every request has its turn.
pub(super) fn rank(times: f64, waits_since: Micros, prefill_us: f64) -> Micros {
    waits_since + Micros::from_f64(times * prefill_us)
}

/// A prompt that has not given its first token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Waiting {
    pub(super) class: Class,
    pub(super) waits_since: Micros,
    /// Time that is left of its prefill, alone on its lanes.
    pub(super) prefill_us: f64,
}

/// Time to the first token of `own`: its prefill, after those of the prompts that it does not pass.
pub(super) fn first_token(
    own: Waiting,
    others: impl Iterator<Item = Waiting>,
    short_prompts_first: Option<f64>,
) -> Micros {
    let passes = |other: &Waiting| {
        let is_reactive = own.class == Class::Reactive && other.class == Class::Reactive;
        let rank_of = |times, it: &Waiting| rank(times, it.waits_since, it.prefill_us);
        other.class > own.class
            || short_prompts_first
                .filter(|_| is_reactive)
                .is_some_and(|times| rank_of(times, &own) < rank_of(times, other))
    };
    let before = others.filter(|other| !passes(other));
    let before_us: f64 = before.map(|other| other.prefill_us).sum();
    Micros::from_f64(before_us + own.prefill_us)
}

/// Time of a prompt's kernels and head on one lane, in chunks, from `cached` tokens on, in µs.
pub(super) fn prefill_us(costs: &impl Costs, lane: Lane, cached: u32, prompt: u32) -> f64 {
    let model = costs.model();
    let latency_us = |call| costs.cost(lane, call).map_or(0.0, |cost| cost.latency_us);
    let mut layer_us = 0.0;
    let mut position = cached;
    while position < prompt {
        let tokens = model.chunk_tokens.max(1).min(prompt - position);
        position += tokens;
        for kernel in model.order.kernels() {
            layer_us += latency_us(Call::Prefill {
                kernel,
                tokens,
                context: position,
            });
        }
    }
    layer_us * f64::from(model.layers) + latency_us(Call::Head { rows: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(class: Class, since: u64, prefill_us: f64) -> Waiting {
        Waiting {
            class,
            waits_since: Micros(since),
            prefill_us,
        }
    }

    #[test]
    fn a_prompt_waits_for_those_before_it() {
        let own = waiting(Class::Reactive, 100, 1000.0);
        let others = [
            waiting(Class::Reactive, 0, 500.0),
            waiting(Class::Proactive, 0, 9000.0),
        ];
        assert_eq!(first_token(own, others.into_iter(), None), Micros(1500));
        let background = waiting(Class::Proactive, 100, 1000.0);
        assert_eq!(
            first_token(background, others.into_iter(), None),
            Micros(10_500)
        );
    }

    #[test]
    fn a_short_prompt_passes_a_long_one_that_has_not_waited_long() {
        let own = waiting(Class::Reactive, 1000, 100.0);
        let fresh = [waiting(Class::Reactive, 900, 5000.0)];
        assert_eq!(first_token(own, fresh.into_iter(), Some(4.0)), Micros(100));
        let old = [waiting(Class::Reactive, 0, 200.0)];
        assert_eq!(first_token(own, old.into_iter(), Some(4.0)), Micros(300));
    }
}
