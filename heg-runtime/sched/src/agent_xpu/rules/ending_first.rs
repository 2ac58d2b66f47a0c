//! Reactive answers that are sure to end soon go before a long reactive prompt, where one lane runs all kernels
//! (`decode.ending_answers_first`). An answer is ahead for at most a part of its own rest.

use super::{
    Card, Class, Counted, Entry, Lane, Proposal, Question, Rule, RuleCard, Verdict, View,
    is_agent_xpu,
};
use crate::costs::Call;
use crate::event::Decoding;

pub(crate) const CARD: Card = Card {
    name: "ending answers first on one device",
    is_on: |policy| is_agent_xpu(policy) && policy.decode.ending_answers_first.is_some(),
    remove: |policy| policy.decode.ending_answers_first = None,
    rule: Some(RuleCard {
        about: &[Question::Precedence],
        counts: Counted::WhenItHolds,
        hold: None,
        rule: |policy| {
            // If prompts are not first, answers are.
            let times = policy.decode.ending_answers_first?;
            let matters = policy.decode.prefill_first;
            matters.then(|| Box::new(EndingFirst { times }) as Box<dyn Rule>)
        },
    }),
};

#[derive(Debug)]
struct EndingFirst {
    /// Length of a prompt that waits, in multiples of the time that an answer may still take.
    times: f64,
}

impl Rule for EndingFirst {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let (Proposal::Turn { lane } | Proposal::Interruption { lane }) = proposal else {
            return Verdict::Pass;
        };
        let goes_before = || {
            let prompt = waiting_prompt(view, lane)?;
            let answers = reactive_answers(view, prompt);
            let ending = answers.min_by_key(|it| (it.tokens_left(), it.id()))?;
            let rest_us = time_of_tokens(view, lane, ending, ending.tokens_left())?;
            Some(view.left_us(prompt) > self.times * rest_us)
        };
        Verdict::wait_if(goes_before().unwrap_or(false))
    }
}

/// Returns the reactive prompt whose kernel is next on the one lane of a machine without an NPU.
pub(super) fn waiting_prompt(view: &dyn View, lane: Lane) -> Option<&Entry> {
    if view.lanes().is_present(Lane::Npu) {
        return None;
    }
    let next = view.next_prefill(lane)?;
    let reactive = next.class == Class::Reactive;
    view.ledger().get(next.id).filter(|_| reactive)
}

/// Returns the reactive answers that may go before a prompt: those of clients that were served more than the prompt's
/// client do not.
pub(super) fn reactive_answers<'v>(
    view: &'v dyn View,
    prompt: &'v Entry,
) -> impl Iterator<Item = &'v Entry> {
    let answers = view.decode().requests();
    let answers = answers.filter_map(|id| view.ledger().get(*id));
    answers.filter(|it| {
        it.class() == Class::Reactive
            && it.ending.is_none()
            && (it.client() == prompt.client() || view.ledger().goes_first(it, prompt))
    })
}

/// Returns the time in which a request decodes a number of tokens alone, in µs.
pub(super) fn time_of_tokens(
    view: &dyn View,
    lane: Lane,
    entry: &Entry,
    tokens: u32,
) -> Option<f64> {
    let alone = Decoding {
        request: entry.id(),
        context: entry.context(),
        drafted: 0,
    };
    let call = Call::iteration(lane, &[alone], false);
    let iteration = view.layers_cost(lane, call, view.model().layers as usize)?;
    Some(f64::from(tokens) * iteration.latency_us)
}
