//! Proactive answers decode beside reactive ones while that slows them little (`decode.reactive_slowdown_max`).
//!
//! Rows of an iteration share the weights that it reads: on a CPU the first few cost next to nothing, on other
//! devices more may.

use super::{
    Candidate, Card, Class, Counted, HoldCard, Lane, Proposal, Question, Rule, RuleCard, Verdict,
    View, is_agent_xpu,
};
use crate::batch::CONTEXT_STEP;
use crate::costs::Call;

pub(crate) const CARD: Card = Card {
    name: "bounded slowdown of reactive answers on one device",
    is_on: |policy| is_agent_xpu(policy) && policy.decode.reactive_slowdown_max.is_some(),
    remove: |policy| policy.decode.reactive_slowdown_max = None,
    rule: Some(RuleCard {
        about: &[Question::Batch],
        counts: Counted::WhenItHolds,
        hold: Some(HoldCard {
            word: "slows down the batch",
            explanation: "left out of a decode batch that it would slow down (decode.reactive_slowdown_max)",
            holds_up_others: false,
        }),
        rule: |policy| {
            let times_max = policy.decode.reactive_slowdown_max?;
            Some(Box::new(Company { times_max }))
        },
    }),
};

#[derive(Debug)]
struct Company {
    /// Longest time of an iteration, in multiples of that of the reactive answers alone.
    times_max: f64,
}

impl Rule for Company {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Batch { lane, batch } = proposal else {
            return Verdict::Pass;
        };
        if view.lanes().is_present(Lane::Npu) {
            return Verdict::Pass;
        }
        let rows = self.bearable_rows(view, lane, batch);
        rows.map_or(Verdict::Pass, Verdict::First)
    }
}

impl Company {
    /// Returns the number of leading answers that do not slow down reactive ones too much, if that is not all of them.
    /// Overdue ones stay: they have waited enough.
    fn bearable_rows(&self, view: &dyn View, lane: Lane, batch: &[Candidate]) -> Option<usize> {
        let is_reactive = |member: &Candidate| member.class == Class::Reactive;
        let reactive = batch.partition_point(is_reactive);
        let certain = batch.partition_point(|member| is_reactive(member) || member.overdue);
        if reactive == 0 || certain == batch.len() {
            return None;
        }
        let layers = view.model().layers as usize;
        let time_us = |rows: usize| {
            let members = batch.get(..rows)?;
            let context: u32 = members.iter().map(|member| member.context).sum();
            let call = Call::Layer {
                rows: rows as u32,
                context: context.next_multiple_of(CONTEXT_STEP),
                fused: false,
            };
            Some(view.layers_cost(lane, call, layers)?.latency_us)
        };
        let alone_us = time_us(reactive)?;
        let bears = |rows: &usize| time_us(*rows).is_some_and(|us| us <= alone_us * self.times_max);
        let more = (certain + 1..=batch.len()).take_while(bears).count();
        (certain + more < batch.len()).then_some(certain + more)
    }
}
