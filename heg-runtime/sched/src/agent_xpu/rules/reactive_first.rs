//! Reactive decoding goes before proactive prompts where there is no NPU to take most of their kernels: prefill-first
//! is meant for the short part of a prompt that the iGPU has (§4.3), and if it has all of it, the classes decide.
//!
//! No policy switches this.

use super::{Card, Class, Counted, Lane, Proposal, Question, Rule, RuleCard, Slot, Verdict, View};

pub(crate) const CARD: Card = Card {
    name: "reactive answers before proactive prompts on one device",
    is_on: |_| false,
    remove: |_| {},
    rule: Some(RuleCard {
        about: &[Question::Precedence],
        counts: Counted::WhenItHolds,
        hold: None,
        rule: |policy| {
            Some(Box::new(ReactiveFirst {
                overdue_take_turns: policy.decode.proactive_share.is_none(),
            }))
        },
    }),
};

#[derive(Debug)]
struct ReactiveFirst {
    /// Whether overdue prompts take turns with decoding instead, for want of a share of the lane.
    overdue_take_turns: bool,
}

impl Rule for ReactiveFirst {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let (Proposal::Turn { lane } | Proposal::Interruption { lane }) = proposal else {
            return Verdict::Pass;
        };
        let takes_turns = || {
            let overdue = view.prefills().holder(Slot::Overdue);
            self.overdue_take_turns
                && overdue.is_some()
                && view.next_prefill(lane).map(|next| next.id) == overdue
        };
        Verdict::wait_if(would_hold_up_reactive(view, lane) && !takes_turns())
    }
}

/// Whether a proactive prompt would go before reactive decoding with all of its kernels.
pub(super) fn would_hold_up_reactive(view: &dyn View, lane: Lane) -> bool {
    !view.lanes().is_present(Lane::Npu)
        && view.decodes_reactive()
        && view.next_prefill(lane).map(|next| next.class) == Some(Class::Proactive)
}
