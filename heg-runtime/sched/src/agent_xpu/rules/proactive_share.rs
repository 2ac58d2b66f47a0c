//! Proactive prompts have a share of the one lane beside reactive decoding (`decode.proactive_share`): they are owed a
//! part of each iteration's time, and run a kernel once that is enough for it.

use std::cell::Cell;

use super::reactive_first::would_hold_up_reactive;
use super::{
    Card, Cost, Counted, Lane, Proposal, Question, Rule, RuleCard, Verdict, View, is_agent_xpu,
};

pub(crate) const CARD: Card = Card {
    name: "share of proactive prompts on one device",
    is_on: |policy| is_agent_xpu(policy) && policy.decode.proactive_share.is_some(),
    remove: |policy| policy.decode.proactive_share = None,
    rule: Some(RuleCard {
        about: &[Question::Precedence],
        counts: Counted::WhenGranted,
        hold: None,
        rule: |policy| {
            Some(Box::new(ProactiveShare {
                share: policy.decode.proactive_share?,
                owed_us: Cell::new(0.0),
            }))
        },
    }),
};

#[derive(Debug)]
struct ProactiveShare {
    share: f64,
    /// Time that proactive prompts are owed beside reactive decoding, in µs.
    owed_us: Cell<f64>,
}

impl Rule for ProactiveShare {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Turn { lane } = proposal else {
            return Verdict::Pass;
        };
        let is_owed = || {
            let next = view.next_prefill(lane);
            next.is_some_and(|next| self.owed_us.get() >= next.cost.latency_us)
        };
        let goes =
            !view.turns().answers_are_next() && would_hold_up_reactive(view, lane) && is_owed();
        Verdict::go_if(goes)
    }

    fn decoded(&self, view: &dyn View, lane: Lane, cost: Cost) {
        let owed_us = match would_hold_up_reactive(view, lane) {
            true => self.owed_us.get() + cost.latency_us * self.share / (1.0 - self.share),
            false => 0.0,
        };
        self.owed_us.set(owed_us);
    }

    fn granted(&self) {
        self.owed_us.set(0.0);
    }
}
